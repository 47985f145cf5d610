"""What ``queue send`` sends: each line a message, each document under its own id, and what is refused is told."""

from __future__ import annotations

import msgspec
import pytest

from oncelog import Queue
from tests.cli.commands.queues.test_queue import queue  # noqa: F401 (a fixture)
from tests.cli.shell import shell

LINES = b"".join(b'{"user": {"id": %d}, "mail": "welcome"}\n' % number for number in range(1_200))


@pytest.mark.usefixtures("queue")
def test_documents_are_sent_once_under_their_own_ids(url: str, queue: Queue) -> None:  # noqa: F811
    """A file that is sent again adds nothing, and the counts say so, however many messages share a commit."""
    first = shell("queue", "send", "emails", "--id-field", "user.id", "--json", url=url, given=LINES).json
    again = shell("queue", "send", "emails", "--id-field", "user.id", "--json", url=url, given=LINES).json
    assert (first["sent"], first["duplicates"], again["sent"], again["duplicates"]) == (1_200, 0, 0, 1_200)
    assert sum(queue.stats().ends) == 1_200


def test_what_is_refused_is_told_and_the_rest_is_sent(url: str, queue: Queue) -> None:  # noqa: F811
    """A line that is no document, has no id, an id that is too long, or other content under a known id: each is named
    with its line, the exit code is 1, and every other message is sent.
    """
    long = b'{"id": "%s"}' % (b"x" * 300)
    lines = [b'{"id": "a"}', b"not json", b'{"mail": 1}', long, b'{"id": "a", "mail": 2}', b'{"id": "b"}']
    done = shell("queue", "send", "emails", "--id-field", "id", "--json", url=url, given=b"\n".join(lines))
    assert (done.code, done.json["sent"], done.json["refused"]) == (1, 2, 4)
    refused = [msgspec.json.decode(line) for line in done.err.splitlines()]
    assert sorted(one["number"] for one in refused) == [2, 3, 4, 5]
    assert sum(queue.stats().ends) == 2


def test_values_of_the_command_line_have_ids_too(url: str, queue: Queue) -> None:  # noqa: F811
    """``--id-field`` is for values and lines alike; together with ``--id`` it would mean two ids."""
    values = ('{"id": 1}', '{"id": 1}', '{"id": 2}')
    done = shell("queue", "send", "emails", *values, "--id-field", "id", url=url)
    assert done.out == b"emails: 2 messages sent, 1 duplicate\n"
    assert shell("queue", "send", "emails", values[0], "--id-field", "id", "--id", "x", url=url).code == 2
    assert sum(queue.stats().ends) == 2
