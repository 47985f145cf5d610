"""Work queues over logs: every message is acknowledged in the end, or lies among the dead letters."""
