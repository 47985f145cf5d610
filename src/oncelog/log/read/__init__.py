"""Reading: the scan over segments, readers and tails, leases."""
