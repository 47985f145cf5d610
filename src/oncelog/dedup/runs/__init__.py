"""Runs of remembered ids, without their storage: mixing of keys, filters, sorted entries, and the search in pages."""
