"""A home in object storage."""
