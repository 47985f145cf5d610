"""Commands about logs, their producers, streams and tables."""
