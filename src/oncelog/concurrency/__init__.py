"""Answers that arrive later, and the threads that work for many callers."""
