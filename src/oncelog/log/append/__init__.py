"""Appending: decide what is new, group it into blocks, store the blocks, answer."""
