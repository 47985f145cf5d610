"""What other people's programs are written against: the names that ``oncelog`` exports, and its tree of errors."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys
import typing

import pytest

import oncelog
from oncelog import errors

EXPORTED = {
    "Ack", "AppendErrors", "BadValue", "CaughtUp", "Closed", "Codec", "ColumnAcks", "Consumer", "CorruptionError",
    "Database", "DeadLetter", "DeadLetters", "Delivery", "Effect",
    "EffectFailed", "Entry", "EventAck", "IdConflict", "Inbox", "InvalidArgument", "LeaseLost", "Location", "Log",
    "LogBusy",
    "LogSettings", "Message", "NotAllowed", "NotAuthenticated", "NotFound", "OncelogError", "PartialOverlap",
    "Pending", "Producer", "ProducerPolicy", "Queue", "Reader",
    "QueueSettings", "Record", "RetryPolicy", "StreamEvent", "StreamInfo", "Streams", "Subscription", "Tail",
    "TooManyCalls", "TooSlow", "Unavailable", "Unsupported",
    "Window", "Worker", "WorkerEvent", "Writer", "WriterFenced", "WrongExpectedVersion", "connect", "json",
    "later", "run_workers", "worker",
}  # fmt: skip

PARENTS = {
    "InvalidArgument": "OncelogError",
    "BadValue": "InvalidArgument",
    "IdConflict": "InvalidArgument",
    "PartialOverlap": "InvalidArgument",
    "AppendErrors": "OncelogError",
    "NotFound": "OncelogError",
    "NotAllowed": "OncelogError",
    "NotAuthenticated": "NotAllowed",
    "WrongExpectedVersion": "OncelogError",
    "Unavailable": "OncelogError",
    "TooManyCalls": "Unavailable",
    "WriterFenced": "OncelogError",
    "LogBusy": "OncelogError",
    "LeaseLost": "OncelogError",
    "EffectFailed": "OncelogError",
    "TooSlow": "OncelogError",
    "Unsupported": "OncelogError",
    "Closed": "OncelogError",
    "CorruptionError": "OncelogError",
}

ATTRIBUTES: list[tuple[errors.OncelogError, dict[str, object]]] = [
    (errors.BadValue("m", position=3), {"position": 3}),
    (errors.IdConflict("m", position=3), {"position": 3}),
    (errors.PartialOverlap("m", known=["a"], new=["b"]), {"known": ("a",), "new": ("b",)}),
    (errors.AppendErrors("m", results=[1, 2]), {"results": (1, 2)}),
    (errors.NotFound("m"), {"first": None}),
    (errors.NotFound("m", first=3), {"first": 3}),
    (errors.WrongExpectedVersion("m", expected=1, actual=2), {"expected": 1, "actual": 2}),
    (errors.Unavailable("m"), {"retry_after_s": 1.0, "outcome": "not written"}),
    (errors.Unavailable("m", retry_after_s=2, outcome="unknown"), {"retry_after_s": 2, "outcome": "unknown"}),
    (errors.WriterFenced("m"), {"outcome": "not written"}),
    (errors.LogBusy("m", pid=3), {"pid": 3}),
    (errors.EffectFailed("m"), {"error": "m"}),
    (errors.EffectFailed("m", error="e"), {"error": "e"}),
]


def defined() -> dict[str, type[object]]:
    """Return the classes that ``errors`` defines."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in found if kind.__module__ == errors.__name__}


def test_exported_names_are_these() -> None:
    """A name that goes breaks programs; one that comes is a promise: either is decided, not slipped in."""
    assert set(oncelog.__all__) == EXPORTED
    assert oncelog.__all__ == sorted(oncelog.__all__)
    assert all(hasattr(oncelog, name) for name in EXPORTED)
    assert set(dir(oncelog)) >= EXPORTED
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        oncelog.conect  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("first", ["import oncelog.connect", "from oncelog.connect import Database", "import oncelog"])
def test_connect_is_the_function_whatever_was_imported(first: str) -> None:
    """A module has the same name: importing it must not take the function's place."""
    program = f"{first}; import oncelog; oncelog.connect('memory://').close(); assert isinstance(oncelog.Record, type)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_nothing_else_looks_exported() -> None:
    """What can be imported from ``oncelog`` and is neither exported nor a module would be used, and then missed."""
    assert all(getattr(oncelog, name) for name in oncelog.__all__), "names are loaded when they are first used"
    public = {name for name, value in vars(oncelog).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public == EXPORTED


def test_every_error_is_exported() -> None:
    """Anybody who has to catch it must not have to look for it."""
    assert set(defined()) <= EXPORTED


def test_errors_form_the_promised_tree() -> None:
    """``except InvalidArgument`` catches what it caught before, and no more."""
    tree = {
        name: [base.__name__ for base in kind.__bases__ if issubclass(base, errors.OncelogError)]
        for name, kind in defined().items()
        if name != "OncelogError"
    }
    assert tree == {name: [parent] for name, parent in PARENTS.items()}
    assert errors.OncelogError.__bases__ == (Exception,)


@pytest.mark.parametrize(("error", "attributes"), ATTRIBUTES, ids=[type(error).__name__ for error, _ in ATTRIBUTES])
def test_errors_carry_what_is_needed_to_act(error: errors.OncelogError, attributes: dict[str, object]) -> None:
    """What a program reads from an error is there, and the message is what ``str`` shows."""
    assert {name: getattr(error, name) for name in attributes} == attributes
    assert str(error) == "m"


@pytest.mark.parametrize("name", sorted(EXPORTED))
def test_everything_exported_is_documented(name: str) -> None:
    """``help(oncelog.<name>)`` says something of its own."""
    exported = getattr(oncelog, name)
    documented = vars(exported).get("__doc__") if inspect.isclass(exported) else exported.__doc__
    assert documented
    assert inspect.cleandoc(documented).splitlines()[0].rstrip()


@pytest.mark.parametrize("name", sorted(PARENTS))
def test_every_error_is_in_the_drawing(name: str) -> None:
    """The tree at the top of ``errors`` is what people read: no error is missing there."""
    assert f"── {name} " in (errors.__doc__ or "")


HANDLES = [
    "Consumer", "Database", "DeadLetters", "Delivery", "Inbox", "Log", "Producer", "Queue", "Reader", "Streams",
    "Subscription", "Tail", "Worker", "Writer",
]  # fmt: skip


@pytest.mark.parametrize("name", [*HANDLES, "connect", "later", "worker"])
def test_annotations_can_be_read_at_run_time(name: str) -> None:
    """Frameworks and documentation tools ask for type hints: every public function answers."""
    value = getattr(oncelog, name)
    members = [(name, value)] if inspect.isfunction(value) else inspect.getmembers(value, inspect.isfunction)
    functions = [one for called, one in members if not called.startswith("_")]
    assert functions
    for function in functions:
        typing.get_type_hints(function)


def test_the_version_is_that_of_the_package() -> None:
    """A bug report can name it."""
    assert oncelog.__version__ == importlib.metadata.version("oncelog")


def test_every_handle_says_what_it_is() -> None:
    """A handle in a log line, or in a debugger, is known by its name, and shows whether it is closed."""
    with oncelog.connect("memory://") as db:
        log = db.log("orders", create=True)
        queue = db.queue("emails", create=True)
        with log.writer() as writer, log.read() as reader, log.tail() as tail, queue.consume("mailer") as consumer:
            shown = [repr(one) for one in (db, log, queue, writer, writer.as_producer("p"), reader, tail, consumer)]
        assert [text for text in shown if not text.startswith("<oncelog ")] == []
        assert repr(log) == "<oncelog log 'orders'>"
        assert repr(queue) == "<oncelog queue 'emails'>"
        assert repr(writer) == "<oncelog writer, closed>"


def test_windows_gets_one_clear_sentence() -> None:
    """A user of Windows reads what to do, not that some module has no name there."""
    code = "import sys; sys.platform = 'win32'; import oncelog"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: Oncelog does not run on Windows: use it in WSL")
