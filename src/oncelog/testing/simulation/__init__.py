"""Runs the real log, streams and queue code in one thread, on virtual stores, a virtual network and a virtual clock.

Everything that happens follows from a seed: the same seed gives the same run, event by event. After a run the checker
compares what clients were answered, what readers saw and what the log holds.

The method is deterministic simulation testing, as FoundationDB (Zhou et al., SIGMOD 2021) and TigerBeetle use it.
"""
