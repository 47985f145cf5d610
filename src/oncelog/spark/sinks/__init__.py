"""Sinks that take each batch exactly once: folders of files, and tables."""
