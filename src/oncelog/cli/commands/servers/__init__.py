"""Commands about servers: run one, watch one, and let callers in."""
