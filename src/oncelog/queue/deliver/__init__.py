"""Delivering messages: the broker, consumers, dead letters."""
