"""The payload of a block: records as Arrow columns, and columns as Arrow messages."""
