"""Background work of a writer: snapshots, sealing, retention."""
