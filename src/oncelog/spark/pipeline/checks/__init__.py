"""Checks of a spec, without Spark and with it, and its explanation."""
