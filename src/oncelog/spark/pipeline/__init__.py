"""Pipelines: the specification, its checks, and the run."""
