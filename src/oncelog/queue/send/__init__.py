"""Sending messages: the sender, turns of several writers, topics."""
