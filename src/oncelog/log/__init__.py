"""Ordered, durable, once: a log's writer, readers, take-over and recovery."""
