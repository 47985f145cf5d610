"""``make run``: a day of orders goes through a pipeline that is killed half way, and started again.

Beside it and at the same time, as the control, plain Spark appends the same files, and is killed the same way. Then
everything is counted from the files. ``make run INPUT=folder ID=column`` does the same with one's own files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

import oncelog
from examples import counting, orders, picture
from examples.counting import Counted
from oncelog.errors import NotFound

ROOT = Path(__file__).parents[2]
ORDERS = 60_000
BATCHES = 12
LOOK_S = 0.03
"""How often it is looked whether it is time to kill: batches take half a second and more."""
FORMATS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}
RUNNING: set[subprocess.Popen[bytes]] = set()
"""The processes that were started and have not ended."""
TRANSPORT = {"attempt", "received_at"}
"""What differs from one attempt to the next, and so is not a part of the order."""

SPEC = """\
name = "{name}"

[source]
format = "{format}"
path = "{input}"
options = {{ maxFilesPerTrigger = {files}{header} }}
{transform}
[identity]
column = "{id}"

[log]
url = "log"
name = "{name}"
[log.settings]
window = {{ duration_s = 604800, max_keys = 10000000 }}

[sink]
format = "parquet"
path = "out"
"""
TRANSFORM = """
[transform]    # the attempt's number, and when it came, are not part of the order
sql = "SELECT order_id, producer, customer, item, quantity, amount_cents, placed_at FROM source"
"""

FIGURES = {
    "logical records": "logical",
    "attempts": "attempts",
    "stored": "stored",
    "duplicates": "duplicates",
    "conflicts": "conflicts",
    "lost": "lost",
    "doubled": "doubled",
}

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


class Story:
    """One run of the whole, in a folder of its own."""

    def __init__(self, folder: Path, given: Path | None, id: str, *, orders: int = ORDERS, kills: int = 1) -> None:
        self.folder = folder
        self.id = id
        self.orders = orders
        self.kills = kills
        self.own = given is not None
        self.input = given or folder / "incoming"
        self.name = "records" if given else "orders"
        self.url = (folder / "log").as_uri()

    def prepare(self) -> None:
        """Make a fresh folder, the input and the spec."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if not self.own:
            with step(f"a day of orders from {len(orders.PRODUCERS)} flaky producers"):
                orders.write(self.input, self.orders, seed=20260314)
        names = counting.data_files(self.input)
        found = {FORMATS[path.suffix] for path in names if path.suffix in FORMATS}
        if len(found) != 1 or any(path.suffix not in FORMATS for path in names):
            sys.exit(f"{self.input}: expected files of one kind, out of {', '.join(FORMATS)}")
        (self.format,) = found
        self.files = max(1, -(-len(names) // BATCHES))
        self.batches = -(-len(names) // self.files)
        self.spec = self.folder / "pipeline.toml"
        self.spec.write_text(
            SPEC.format(
                name=self.name,
                format=self.format,
                input=self.input.absolute() if self.own else "incoming",
                files=self.files,
                header=", header = true" if self.format == "csv" else "",
                transform="" if self.own else TRANSFORM,
                id=self.id,
            )
        )

    def pipeline(self) -> list[str]:
        """Return the command that runs the pipeline."""
        return [sys.executable, "-m", "oncelog.cli", "pipeline", "run", str(self.spec), "--json"]

    def control(self) -> list[str]:
        """Return the command that runs the control."""
        where = (self.folder / "control", self.folder / "control-checkpoint")
        arguments = [str(self.input), self.format, str(self.files), *map(str, where)]
        return [sys.executable, "-m", "examples.control", *arguments]

    def stored_batches(self) -> Callable[[], int]:
        """Return what tells how many batches the log has taken: how often it was seen to have grown."""
        ends: set[int] = set()

        def seen() -> int:
            try:
                with oncelog.connect(self.url) as db:
                    ends.add(db.log(self.name).info().last_position)
            except NotFound:
                return 0
            return len(ends - {-1})

        return seen

    def written_files(self) -> int:
        """Return how many files of the output have been begun."""
        return sum(path.is_file() for path in (self.folder / "out").rglob("*"))

    def appended_batches(self) -> int:
        """Return how many batches the control has appended: files of one batch share a part of their names."""
        return len({path.name.split("-c000")[0].split("-", 2)[2] for path in (self.folder / "control").glob("part-*")})


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    begin = time.monotonic()
    with console.status(f"{what} …"):
        yield
    console.print(f"  [green]✓[/] {what} [dim]{time.monotonic() - begin:.1f} s[/]")


def environment() -> dict[str, str]:
    """Return an environment in which a short-lived JVM starts sooner, for the pipeline and the control alike."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


@contextmanager
def started(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process in a session of its own, with its JVM; whatever ends this one early ends that, too."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment(), stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )
    RUNNING.add(process)
    try:
        yield process
    finally:
        RUNNING.discard(process)
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its JVM, if they still run."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(command: list[str], log: Path) -> None:
    """Run a command to its end."""
    with started(command, log) as process:
        process.wait()
    if process.returncode:
        console.print(log.read_text()[-3000:])
        sys.exit(f"failed: {' '.join(command)} (all of it: {log})")


def kill_at(command: list[str], log: Path, batches: Callable[[], int], count: int) -> bool:
    """Run a command, and kill it and its JVM with SIGKILL once so many batches are there.

    Return whether that came to be, which is not so when it was done before.
    """
    with started(command, log) as process:
        while process.poll() is None:
            if batches() >= count:
                end(process)
                return True
            time.sleep(LOOK_S)
    if process.returncode:
        console.print(log.read_text()[-3000:])
        sys.exit(f"failed: {' '.join(command)} (all of it: {log})")
    return False


def tell(ours: Counted, control: Counted) -> None:
    """Print both, side by side."""
    table = Table(title="Counted from the files", title_justify="left")
    table.add_column("")
    for name in ("Oncelog pipeline", "control: plain Spark append"):
        table.add_column(name, justify="right")
    for title, name in FIGURES.items():
        cells = [f"{getattr(counted, name):,}" for counted in (ours, control)]
        if name in {"lost", "doubled"}:
            cells = [f"[bold {'green' if cell == '0' else 'red'}]{cell}[/]" for cell in cells]
        table.add_row(title, *cells)
    console.print(table)


def main() -> None:
    """Tell the story."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "run")
    parser.add_argument("--input", type=Path)
    parser.add_argument("--id")
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--kills", type=int, choices=(1, 2), default=1)
    given = parser.parse_args()
    if given.input is not None and not given.input.is_dir():
        sys.exit(f"{given.input}: not a folder; INPUT is a folder of JSON, CSV or Parquet files")
    if (given.input is None) != (given.id is None):
        sys.exit("INPUT, a folder, and ID, the column that tells records apart, go together")
    begin = time.monotonic()
    story = Story(
        given.folder.absolute(),
        given.input.absolute() if given.input else None,
        given.id or "order_id",
        orders=given.orders,
        kills=given.kills,
    )
    ours, control = perform(story)
    tell(ours, control)
    report = (story.folder / "report.html").as_uri()
    console.print(f"All of it took {time.monotonic() - begin:.0f} s. With plots: [cyan]{report}[/]")
    if ours.lost or ours.doubled:
        sys.exit("The pipeline lost or doubled records: please tell us.")


def perform(story: Story) -> tuple[Counted, Counted]:
    """Run the pipeline and the control, kill both, run both again, and count."""
    story.prepare()
    half = max(1, story.batches // 2)
    log = story.folder / "run.log"
    with ThreadPoolExecutor(1) as beside:
        control = beside.submit(perform_control, story, half)
        try:
            perform_pipeline(story, half, log)
        except BaseException:
            for process in list(RUNNING):  # nobody waits for the control of what failed
                end(process)
            raise
        with step(f"control: plain Spark append, killed with SIGKILL when batch {half} was there, started again"):
            control.result()
    with step("counted what came in, what was stored and what came out"):
        return counted(story)


def perform_pipeline(story: Story, half: int, log: Path) -> None:
    """Run the pipeline, kill it, and run it again."""
    with step(f"pipeline into the log, killed with SIGKILL when the log has batch {half} of {story.batches}"):
        kill_at(story.pipeline(), log, story.stored_batches(), half)
    if story.kills > 1:
        with step("pipeline started again, and killed when the first rows are on their way into Parquet"):
            kill_at(story.pipeline(), log, story.written_files, 1)
    with step("pipeline started again: into the log, and on into Parquet"):
        run(story.pipeline(), log)


def perform_control(story: Story, half: int) -> None:
    """Run the control, kill it, and run it again."""
    log = story.folder / "control.log"
    kill_at(story.control(), log, story.appended_batches, half)
    run(story.control(), log)


def counted(story: Story) -> tuple[Counted, Counted]:
    """Count both from the files, and draw the report."""
    rows = counting.input_rows(story.input, story.format, story.id, set() if story.own else TRANSPORT)
    stored = counting.log_rows(story.url, story.name)
    aside = counting.log_rows(story.url, f"conflicts.{story.name}")
    ours = counting.count(rows, stored, len(aside), counting.parquet_ids(story.folder / "out", story.id))
    appended = counting.parquet_ids(story.folder / "control", story.id)
    control = Counted(
        logical=ours.logical,
        attempts=ours.attempts,
        stored=len(appended),
        duplicates=0,
        conflicts=0,
        lost=len(set(rows["_id"].dropna()) - set(appended)),
        doubled=len(appended) - len(set(appended)),
    )
    settled = counting.settle(rows, stored, story.id)
    picture.draw(story.folder, story.name, settled, ours, control, own=story.own)
    return ours, control
