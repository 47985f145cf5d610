"""A worker: handlers that take deliveries of a queue and run each effect once through the inbox."""
