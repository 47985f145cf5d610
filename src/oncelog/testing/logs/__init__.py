"""The parts of the contract suite of logs."""
