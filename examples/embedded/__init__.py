"""A shop takes orders while its process is killed again and again; every order is in the log once.

Run it with ``python -m examples.embedded``. A producer sends orders from a process that is ended with SIGKILL in the
middle of its work, and, as producers do, sends everything again that it has no answer for. The same is done with
idempotence off, to show what would happen without it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import oncelog
from oncelog import LogSettings

ORDERS = 400
KILLS = 6
ORDERS_BETWEEN_KILLS = 50


def produce(url: str, idempotence: str) -> None:
    """Send every order that was not answered yet, and say so on standard output for each answer."""
    done = int(sys.stdin.readline())
    with oncelog.connect(url) as db, db.log("orders").writer() as writer:
        for number in range(done, ORDERS):
            name = f"order-{number}"
            ack = writer.append(name.encode(), id=name if idempotence != "off" else None)
            print(ack.position, int(ack.duplicate), flush=True)


def drive(url: str, idempotence: str) -> tuple[int, int, int]:
    """Run the producer, kill it, run it again; return attempts, answers that were lost, and duplicates."""
    answered = attempts = duplicates = lost = 0
    for life in range(KILLS + 1):
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.embedded", url, idempotence],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{answered}\n")
        process.stdin.flush()
        for got, line in enumerate(process.stdout, 1):
            attempts += 1
            duplicates += int(line.split()[1])
            if life < KILLS and got == ORDERS_BETWEEN_KILLS:
                # The last few answers never reach the producer: it must send those orders again.
                process.send_signal(signal.SIGKILL)
                lost += 10
                break
            answered += 1
        process.communicate()
        if life < KILLS:
            answered -= 9
    return attempts, lost, duplicates


def main() -> None:
    """Run the shop twice and show what is in its log."""
    console = Console()
    table = Table(title=f"{ORDERS} orders, the producer killed {KILLS} times, lost answers sent again")
    for column in ("", "attempts", "answers lost", "duplicates", "stored", "lost", "doubled"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory() as folder:
        for title, idempotence in (("with ids", "explicit"), ("control: idempotence off", "off")):
            url = (Path(folder) / idempotence).as_uri()
            with oncelog.connect(url) as db:
                db.log("orders", LogSettings(idempotence=idempotence), create=True)  # type: ignore[arg-type]
            with console.status(f"{title} …"):
                attempts, lost, duplicates = drive(url, idempotence)
            with oncelog.connect(url) as db:
                stored = [entry.value for entry in db.log("orders").read()]
            missing, doubled = ORDERS - len(set(stored)), len(stored) - len(set(stored))
            colour = "green" if missing == doubled == 0 else "red"
            figures = [str(number) for number in (attempts, lost, duplicates, len(stored))]
            table.add_row(title, *figures, f"[{colour}]{missing}[/]", f"[{colour}]{doubled}[/]")
    console.print(table)
