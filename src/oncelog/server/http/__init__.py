"""The HTTP side: for people, curl, webhooks and browsers."""
