"""The rules of a queue, pure: deliveries, retries, time, messages, settings."""
