"""What ``queue send`` sends: values of the command's line, or lines of stdin, each a message, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oncelog.cli.records import sources
from oncelog.cli.records.appending import RefusedLine
from oncelog.errors import AppendErrors, InvalidArgument, OncelogError

if TYPE_CHECKING:
    from oncelog import Message, Queue

_MESSAGES = 500


class SendingRun:
    """One run of the command: what it sends, what it counted. ``common`` is what all messages have."""

    def __init__(self, queue: Queue, common: dict[str, Any], tell: Callable[[RefusedLine], None]) -> None:
        self._queue = queue
        self._common = common
        self._tell = tell
        self.sent = self.duplicates = self.refused = 0

    def run(self, values: Sequence[str] | None, id_field: str | None) -> None:
        """Send everything; show what is refused, one by one."""
        source = ("arguments", "value") if values else ("stdin", "line")
        for batch in _batches(values, sources.Fields(id=id_field)):
            for place, reason in batch.refusals:
                self._refuse(source, place, "InvalidArgument", reason)
            messages = list(zip(batch.places, self._messages(batch), strict=True))
            for start in range(0, len(messages), _MESSAGES):
                self._send(messages[start : start + _MESSAGES], source)

    def _messages(self, batch: sources.SourceBatch) -> Iterator[Message]:
        from oncelog import Message  # noqa: PLC0415 (queues are loaded when they are used)

        columns = batch.records.to_pydict()
        ids = columns.get("id") or [self._common["id"]] * batch.records.num_rows
        for value, id in zip(columns["value"], ids, strict=True):
            yield Message(value, **{**self._common, "id": id})

    def _send(self, messages: Sequence[tuple[int, Message]], source: tuple[str, str]) -> None:
        failed: OncelogError | None = None
        for (place, _), answer in zip(messages, self._answers([one for _, one in messages]), strict=True):
            if isinstance(answer, InvalidArgument):
                self._refuse(source, place, type(answer).__name__, str(answer))
            elif isinstance(answer, OncelogError):  # not the message's fault: the command ends, and may be repeated
                failed = failed or answer
            elif answer.duplicate:
                self.duplicates += 1
            else:
                self.sent += 1
        if failed is not None:
            raise failed

    def _answers(self, messages: Sequence[Message]) -> Sequence[Any]:
        try:
            return self._queue.send_many(messages)
        except AppendErrors as errors:
            return errors.results
        except InvalidArgument as error:  # one message cannot be sent, so none of them was sent
            return [error] if len(messages) == 1 else [answer for one in messages for answer in self._answers([one])]

    def _refuse(self, source: tuple[str, str], place: int, error: str, reason: str) -> None:
        self.refused += 1
        self._tell(RefusedLine(source=source[0], place=source[1], number=place, error=error, reason=reason))


def _batches(values: Sequence[str] | None, fields: sources.Fields) -> Iterator[sources.SourceBatch]:
    if values:
        yield sources.given([value.encode(errors="surrogateescape") for value in values], fields)
    else:
        yield from sources.batches(sources.STDIN, "jsonl" if fields else "lines", fields)
