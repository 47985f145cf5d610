"""A log's history as a table of Delta or Iceberg, which other programs read as they read any other."""
