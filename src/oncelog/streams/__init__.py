"""The event-store face of a log: streams with versions, expected versions, reads both ways, and subscriptions."""
