"""The report of ``make run``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from examples.counting import Counted
from oncelog.spark.pipeline.history import History
from oncelog.spark.report import page, plots, report
from oncelog.spark.report.page import Figure, Section
from oncelog.spark.report.plots import Series

FATES = ("stored", "duplicate", "conflict")


def draw(folder: Path, name: str, settled: pd.DataFrame, ours: Counted, control: Counted, *, own: bool) -> None:
    """Write ``report.html`` into the folder."""
    events = list(History(folder / ".oncelog" / name / "history.jsonl"))
    sections = [_beside(ours, control)]
    if not own:
        sections += [_by_hour(settled), _by_producer(settled)]
    sections += report.progress(events) + report.times(events) + [_table(ours, control)]
    what = "Your records" if own else "A day of orders"
    text = page.page(
        f"{what}, and a pipeline killed half way",
        "A Spark pipeline wrote them into a log and from there into Parquet. It was ended with SIGKILL in the middle "
        "and started again. All figures are counted from the files that came in and the files that came out.",
        _figures(ours),
        sections,
        "Made by make run. The pipeline is pipeline.toml beside this page; log, output and control are there, too.",
    )
    page.write(folder / "report.html", text)


def _figures(ours: Counted) -> list[Figure]:
    return [
        Figure("logical records", ours.logical),
        Figure("attempts", ours.attempts),
        Figure("stored", ours.stored),
        Figure("duplicates", ours.duplicates),
        Figure("conflicts", ours.conflicts),
        Figure("lost", ours.lost, ours.lost == 0),
        Figure("doubled", ours.doubled, ours.doubled == 0),
    ]


def _beside(ours: Counted, control: Counted) -> Section:
    replayed = max(0, control.stored - control.attempts)
    series = [
        Series("each record once", "stored", ()),
        Series("again, because producers sent it again", "duplicate", ()),
        Series("again, because of the kill", "conflict", ()),
    ]
    found = ours.logical - ours.lost
    rows = [
        ("Oncelog", (found, ours.doubled, 0), f"{found + ours.doubled:,} rows"),
        (
            "plain append",
            (control.stored - control.doubled, control.doubled - replayed, replayed),
            f"{control.stored:,} rows",
        ),
    ]
    text = (
        f"{ours.logical:,} records came in {ours.attempts:,} attempts. Rows in the output of the pipeline, and in that "
        "of plain Spark, which appended the same files and was killed the same way."
    )
    return Section("What came out", text, plots.legend(series) + plots.bars(rows, series, what="rows in the output"))


def _by_hour(settled: pd.DataFrame) -> Section:
    hours = settled["received_at"].str.slice(11, 13)
    counts = {fate: hours[settled["_fate"] == fate].value_counts() for fate in FATES}
    labels = [f"{hour:02d}" for hour in range(24)]
    series = report.kinds(*([float(counts[fate].get(hour, 0)) for hour in labels] for fate in FATES))
    text = "Attempts in each hour of the day, by what became of them. Spikes of duplicates are producers that replay."
    plot = plots.columns(labels, series, what="attempts in each hour")
    return Section("Over the day", text, plots.legend(series) + plot)


def _by_producer(settled: pd.DataFrame) -> Section:
    counts = pd.crosstab(settled["producer"], settled["_fate"])
    rows = []
    for producer, row in sorted(counts.iterrows(), key=lambda item: -item[1].sum()):
        values = [float(row.get(fate, 0)) for fate in FATES]
        rows.append((str(producer), values, f"{1 - values[0] / sum(values):.1%} again, {values[2]:.0f} in conflict"))
    series = report.kinds()
    text = "Some lose answers, some replay what they sent before they were restarted, some use an id for two orders."
    return Section("By producer", text, plots.legend(series) + plots.bars(rows, series, what="attempts by producer"))


def _table(ours: Counted, control: Counted) -> Section:
    names = ("logical", "attempts", "stored", "duplicates", "conflicts", "lost", "doubled")
    rows = [
        (title, *(getattr(counted, name) for name in names))
        for title, counted in (("Oncelog pipeline", ours), ("plain Spark append", control))
    ]
    head = ("", "logical records", "attempts", "stored", "duplicates", "conflicts", "lost", "doubled")
    text = "Lost: ids of the input that are not in the output. Doubled: rows of the output whose id is there already."
    return Section("In figures", text, page.table(head, rows, judged=("lost", "doubled")))
