"""Where an inbox keeps its keys: SQL databases and Redis."""
