"""Watching a server: metrics, traces, log lines."""
