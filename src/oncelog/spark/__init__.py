"""Oncelog and Spark: a source and a sink, ``format("oncelog")``, and the jobs that are made of them."""
