"""Jobs over a whole log: verify, audit, purge, copy, rebuild a snapshot."""
