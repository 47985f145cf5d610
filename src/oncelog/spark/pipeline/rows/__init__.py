"""Rows of a source: their files, their encoding, their schema."""
