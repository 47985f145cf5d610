"""The memory of a log: ids of closed segments, in immutable sorted runs that are stored beside the sealed files."""
