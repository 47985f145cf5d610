"""The HTTP face of a server: for curl, webhooks, browsers and every language."""
