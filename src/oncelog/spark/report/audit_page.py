"""An audit as a page."""

from __future__ import annotations

from oncelog.log.jobs.audit import Audit, Share
from oncelog.spark.report import page, plots
from oncelog.spark.report.page import Figure, Section
from oncelog.spark.report.plots import Series


def page_of(log: str, by: str, found: Audit) -> str:
    """Return the page of an audit."""
    sections = [_hours(found)] if found.hours else []
    if len(found.by) > 1:
        sections.append(_kinds(by, found))
    if found.sample:
        rows = [(one.position, one.first, "the same" if one.same else "other") for one in found.sample]
        text = f"The first {len(rows)} of {found.duplicates + found.conflicts:,}."
        sections.append(Section("Ids that are there again", text, page.table(("position", "first", "content"), rows)))
    if found.findings:
        rows_found = [(one.where, one.what) for one in found.findings]
        sections.append(Section("Not whole", "What could not be read.", page.table(("where", "what"), rows_found)))
    return page.page(
        f"Audit of the log {log}",
        f"Everything in {found.segments:,} closed segments was read, and its checksums compared. Each id should be "
        "there once; one that is there again came in when the window had forgotten the first.",
        [
            Figure("records", found.records),
            Figure("with an id", found.ids),
            Figure("duplicates", found.duplicates, found.duplicates == 0),
            Figure("conflicts", found.conflicts, found.conflicts == 0),
            Figure("not whole", len(found.findings), not found.findings),
        ],
        sections,
        "Made by oncelog audit.",
    )


def _series(shares: list[Share]) -> list[Series]:
    once = [float(share.records - share.repeats) for share in shares]
    return [Series("once", "stored", once), Series("again", "conflict", [float(share.repeats) for share in shares])]


def _hours(found: Audit) -> Section:
    series = _series(list(found.hours.values()))
    labels = [hour[5:13].replace("T", " ") for hour in found.hours]
    plot = plots.columns(labels, series, what="records stored in each hour")
    return Section("Over time", "Records by the hour in which they were stored, UTC.", plots.legend(series) + plot)


def _kinds(by: str, found: Audit) -> Section:
    shares = list(found.by.items())[:20]
    series = _series([])
    rows = [
        (kind or "(none)", (share.records - share.repeats, share.repeats), f"{share.repeats:,} again")
        for kind, share in shares
    ]
    plot = plots.bars(rows, series, what=f"records by {by}")
    return Section(f"By {by}", f"Records by their {by}.", plots.legend(series) + plot)
