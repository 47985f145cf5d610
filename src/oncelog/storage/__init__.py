"""Where a log's bytes are kept: the contract, and the homes that keep it."""
