"""Work that was left to a thread: the end of the interpreter waits for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import oncelog
from oncelog import handle
from tests.servers import Serving

COUNT = 500

PROGRAM = """
import sys
import oncelog

def main():
    db = oncelog.connect(sys.argv[1])
    {submit}

main()
{ending}
"""

SUBMITS = {
    "log": "w = db.log('orders', create=True).writer(); [w.submit(b'x', id=str(n)) for n in range(500)]",
    "queue": "q = db.queue('orders', create=True); [q.submit(b'x', id=str(n)) for n in range(500)]",
    "streams": "s = db.streams('orders', create=True)\n"
    "    [s.submit(f's{n}', oncelog.Record(b'x', id=str(n))) for n in range(500)]",
}
"""What a program submits, and forgets."""


@pytest.mark.parametrize("ending", ["", "raise SystemExit(0)"])
@pytest.mark.parametrize("kind", list(SUBMITS))
@pytest.mark.parametrize("where", ["server", "disk"])
def test_what_was_submitted_is_stored_at_exit(
    where: str, kind: str, ending: str, serve: Callable[..., Serving], tmp_path: Path
) -> None:
    """A program ends right after it has submitted, and closes nothing: all of it is stored, and nothing is said."""
    url = f"oncelog://{serve().grpc}" if where == "server" else (tmp_path / "db").as_uri()
    program = PROGRAM.format(submit=SUBMITS[kind], ending=ending)
    done = subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True, text=True)
    assert done.stderr == ""
    with oncelog.connect(url) as db:
        log = db.log("queue/orders/0" if kind == "queue" else "orders")
        assert log.end_position() == COUNT


def test_a_set_that_another_thread_adds_to_is_listed() -> None:
    """A daemon that opens a handle while the interpreter ends keeps nothing else from being closed."""

    class Changing(set[int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            self.looks += 1
            for one in super().__iter__():
                yield one
                if self.looks == 1:
                    self.add(7)  # as the other thread does

    assert sorted(handle._listed(Changing({1, 2}))) == [1, 2, 7]


def _said_without(server: Serving, program: str) -> bytes:
    """Run a program whose server is killed when the program has opened what it needs; return what the program says."""
    command = [sys.executable, "-c", program, f"oncelog://{server.grpc}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"open\n"
        server.kill()
        return running.communicate(b"\n")[1]


def test_what_has_no_answer_at_exit_is_told(serve: Callable[..., Serving]) -> None:
    """The server is gone when a program ends: it says how much may be lost."""
    server = serve()
    program = PROGRAM.format(
        submit="w = db.log('orders', create=True).writer(); print('open', flush=True); input()\n"
        "    [w.submit(b'x', id=str(n)) for n in range(500)]",
        ending="import oncelog.handle\noncelog.handle.EXIT_S = 0.5",
    )
    errors = _said_without(server, program)
    assert b"500 submissions have no answer" in errors


def test_a_server_that_is_gone_leaves_time_to_close_what_is_open(serve: Callable[..., Serving], tmp_path: Path) -> None:
    """The wait for a dead server took all the time there is: a writer on a disk was cut off while it closed."""
    server = serve()
    program = PROGRAM.format(
        submit="w = db.log('orders', create=True).writer(); print('open', flush=True); input()\n"
        "    w.submit(b'x', id='1')\n"
        f"    own = oncelog.connect({(tmp_path / 'db').as_uri()!r}).log('own', create=True).writer()\n"
        "    own.submit(b'x', id='1')\n"
        "    globals()['held'] = own",
        ending="import oncelog.handle\noncelog.handle.EXIT_S, oncelog.handle.CLOSE_S = 0.5, 60.0",
    )
    errors = _said_without(server, program)
    assert b"1 submissions have no answer" in errors
    assert b"could not be closed in time" not in errors
