"""The control: the same input, appended by plain Spark to Parquet files, batch by batch, with a checkpoint.

``python -m examples.control INPUT FORMAT FILES_A_BATCH OUTPUT CHECKPOINT``. It does what an append from
``foreachBatch`` does anywhere, to files, tables or databases: what was appended when a run is killed, and not noted in
the checkpoint yet, is appended again. And nothing in it knows a retry when it sees one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from oncelog.spark.session import session


def main(input: str, format: str, files_a_batch: str, output: str, checkpoint: str) -> None:
    """Append all there is."""
    spark = session.start("control", log_file=Path(checkpoint) / "spark.log")
    options = {"header": "true"} if format == "csv" else {}
    schema = spark.read.format(format).options(**options).load(input).schema
    rows = (
        spark.readStream.format(format).options(**options, maxFilesPerTrigger=files_a_batch).schema(schema).load(input)
    )

    def append(batch: Any, _: int) -> None:
        batch.write.mode("append").parquet(output)

    writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
