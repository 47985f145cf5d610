"""The stored form of runs: sorted, immutable tables of the ids that a range of a log holds."""
