"""A spec to begin with, every part of it explained."""

from __future__ import annotations

import json

TEMPLATE = """\
# A pipeline: records come from somewhere, get an identity, go into a log once, and from there on.
#
#     oncelog pipeline check {file}     what it would do, and what is wrong with it
#     oncelog pipeline run {file}       until all there is has gone through; run it again at any moment
#
# Paths are relative to this file.

name = "{name}"

[source]                       # anything that Spark reads: json, csv, parquet, kafka, jdbc, oncelog, …
format = "json"
path = "{input}"
# schema = "order_id STRING, amount DECIMAL(10,2), placed_at TIMESTAMP"    # else taken from the files there are
[source.options]
maxFilesPerTrigger = 100       # a batch is at most so many files

# [transform]                  # what becomes of rows before they are records
# sql = "SELECT order_id, amount, placed_at FROM source WHERE amount > 0"

[identity]                     # what makes two rows the same record: one of these three
column = "{id}"
# expression = "concat(shop, '/', order_id)"
# content = true               # rows that are equal

[log]                          # keeps each record once, also when it is sent again
url = "{url}"
name = "{name}"
# on_conflict = "quarantine"   # the same id with other content: kept aside, in conflicts.{name}
# [log.settings]               # to create it with
# window = {{ duration_s = 604800, max_keys = 1000000 }}    # forget an id after a week of up-time (else never)

[sink]                         # where the log's records go on to; leave it out to keep them in the log alone
format = "parquet"
path = "{output}"
# sql = "SELECT position, order_id, amount FROM log"
# partition_by = ["placed_on"]

# [run]
# master = "local[*]"          # or spark://host:7077, yarn, k8s://…
# checkpoint = ".oncelog/{name}"
"""


def template(
    *,
    file: str,
    name: str = "orders",
    input: str = "incoming",
    id: str = "order_id",
    url: str = "data",
    output: str = "out",
) -> str:
    """Return a commented spec. Texts are escaped as in JSON, which TOML reads, too."""
    given = {"file": file, "name": name, "input": input, "id": id, "url": url, "output": output}
    return TEMPLATE.format(**{key: json.dumps(text, ensure_ascii=False)[1:-1] for key, text in given.items()})
