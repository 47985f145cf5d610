"""Bytes to values and back, without I/O: blocks, envelopes, manifests, snapshots."""
