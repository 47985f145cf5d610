"""Spark: a source and a sink that write exactly once, and jobs that run on them.

``format("oncelog")`` is found by ``pip install`` alone: ``pyspark_oncelog`` is what Spark discovers, and it loads the
parts of this room when they are needed.
"""
