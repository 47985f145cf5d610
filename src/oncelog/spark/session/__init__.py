"""Starting Spark and running work on it."""
