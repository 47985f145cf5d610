"""The inbox: effects that happen once, kept in the user's own database."""
