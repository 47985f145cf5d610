"""A home on a local disk."""
