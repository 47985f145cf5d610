"""Every limit, in one place. Going over one is ``InvalidArgument``, and nothing is written."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

NAME_BYTES_MAX = 255
"""A log's name, in UTF-8."""

ID_BYTES_MAX = 255
"""A record's id, in UTF-8; the least is one byte."""

VALUE_BYTES_MAX = 16 * MIB
"""One record's value."""

LABEL_BYTES_MAX = 1 * KIB
"""A record's stream, type, producer or tenant, in UTF-8; a header's name."""

HEADERS_MAX = 64
"""Headers on one record."""

HEADER_BYTES_MAX = 64 * KIB
"""All of one record's headers together, names and values."""

BLOCK_BYTES_MAX = 64 * MIB
"""What one commit may write: so the most an atomic batch may hold."""

BLOCK_RECORDS_MAX = 1 << 20
"""Records in one block."""

INPUT_BATCH_BYTES_MAX = 256 * MIB
"""What one compressed batch of an Arrow file may come to: a file of a few kilobytes may ask for gigabytes."""

SEGMENT_BYTES_MIN = 64 * KIB
SEGMENT_BYTES_MAX = 4 * GIB
"""A segment's size before it rolls (the last block may go over it)."""

WINDOW_KEYS_MAX = 100_000_000
"""Ids one dedup window may keep."""

WINDOW_DURATION_S_MAX = 366 * 86_400.0
"""How long a dedup window may keep an id."""

PRODUCERS_MAX = 1_000_000
"""Producers whose last sequence one log may be set to remember."""

LEASE_S_MAX = 7 * 86_400.0
"""How long a reader that has stopped may keep records from being truncated."""

PENDING_BYTES_MAX = 4 * GIB
PENDING_RECORDS_MAX = 100_000_000
"""What may wait to be stored before append waits for room."""

MARKS_MAX = 1_000
"""Producers of batches (Spark queries) whose progress a log remembers; the least recently active goes first."""

MARK_S_MAX = 90 * 86_400
"""How long a producer of batches may be inactive before its progress is forgotten."""

MARKED_BATCHES_MAX = 16
"""The batches of one producer whose rows a replay can be compared with."""

QUEUE_PARTITIONS_MAX = 1024
"""Logs that one topic may be spread over."""

QUEUE_DELAY_S_MAX = 366 * 86_400.0
"""How long a message may be delayed, rest between attempts, be leased, or wait for its deadline."""

QUEUE_ATTEMPTS_MAX = 1_000_000_000
"""How often a message may be delivered, where that is bounded."""

QUEUE_PREFETCH_MAX = 10_000
"""Messages that one consumer may hold at once."""

QUEUE_CLAIM_BYTES_MAX = 16 * MIB
"""What is claimed at once of a queue, and what a list of messages has: it ends before this, unless its first message
alone is larger."""

REASON_BYTES_MAX = 4 * KIB
"""What a queue or an inbox keeps of the reason of a failure, in UTF-8; the rest is cut off."""

QUEUE_HEADERS_MAX = HEADERS_MAX - 1
"""Headers on one message: one more is the queue's own, when it becomes a dead letter at the latest."""

QUEUE_HEADER_BYTES_MAX = HEADER_BYTES_MAX - 8 * KIB
"""All of one message's headers together: the rest is for what a dead letter says of its end."""

INBOX_KEY_BYTES_MAX = 64 * KIB
"""The key of an effect, in UTF-8."""

INBOX_RESULT_BYTES_MAX = 16 * MIB
"""The stored result of an effect."""

INBOX_STORY_EVENTS_MAX = 100
"""Events that are kept of a key's story, the latest ones."""

HTTP_BODY_BYTES_MAX = 16 * MIB
"""The body of an HTTP request that is read as a whole. NDJSON with an id on every line may be longer."""

HTTP_BODIES_BYTES_MAX = 128 * MIB
"""All bodies of HTTP requests that are held at once; over it a request waits, and after 5 s gets a 503."""

HTTP_ANSWERS_BYTES_MAX = 256 * MIB
"""All pages of records and events that are made or being sent at once; over it a request waits, and after 5 s gets a
503."""

HTTP_FILES_BYTES_MAX = 256 * MIB
"""What all downloads of sealed files hold at once, 1 MiB each; over it a request waits, and after 5 s gets a 503."""

HTTP_LINE_BYTES_MAX = 24 * MIB
"""One line of NDJSON: a value of the greatest size, in base64, with its labels."""

HTTP_HEAD_BYTES_MAX = 64 * KIB
"""The request line and the headers of an HTTP request."""

HTTP_HEAD_S_MAX = 15.0
"""How long the server waits for the head of a request, from its first byte or from the connection's begin."""

HTTP_BODY_S_MAX = 30.0
"""How long a body may take; more for a large one, by 8 KiB a second. What is left of a body whose request is answered
may take as long."""

HTTP_ANSWER_S_MAX = 60.0
"""How long a client may take nothing of a large answer, or of the results of a long body; then its connection ends.
Of a page or a file it must take 64 KiB a second, too, after so long."""

HTTP_READ_RECORDS_MAX = 10_000
"""Records that one GET returns; `limit` may say fewer."""

HTTP_CONNECTIONS_MAX = 12_000
"""HTTP connections that are open at once, and no more than half of the files that the process may have open; one more
is closed at once."""

SERVER_READS_BYTES_MAX = 256 * MIB
"""What all streams that read to the end of a log may hold of it at once by large steps; those beyond it take small
ones."""

SERVER_CALLS_PER_S = 10_000
SERVER_CALLS_BURST = 20_000
"""Calls of one token; the next is answered 429. A stream of frames is one call."""

SERVER_FAILED_LOGINS_PER_S = 1.0
SERVER_FAILED_LOGINS_BURST = 20
"""Failed logins of one peer; the next is answered 429 without a look at its token."""

SERVER_PEERS_MAX = 10_000
"""Peers and tokens whose rates are remembered."""

METRIC_LOGS_MAX = 1_000
"""Logs that have metrics of their own; the rest are added up under `log="other"`."""

MEMORY_RUN_IDS = 262_144
"""Ids after which a segment of a log that remembers without bounds is closed, so that they can become a run."""

MEMORY_RUN_IDS_MIN = 65_536
"""A run is made of closed segments with so many ids; files with as many that are adopted bring a run of their own."""

MEMORY_RUN_RECORDS_MIN = 1 << 20
"""A run is made of closed segments with so many records, however few ids they have: opening reads no more."""

MEMORY_TABLE_IDS_MAX = 4 * MEMORY_RUN_IDS
MEMORY_RUNS_MAX = 64
"""Appends wait while so many ids, or runs, wait to be put into (larger) runs."""

MEMORY_MERGED_RUNS = 8
"""So many neighbours of one size class become one run. With more, an id is written less often, and there are more runs:
behind the sieve these cost next to nothing (decision 65).
"""

MEMORY_SIEVE_IDS = 1 << 26
"""A sieve is made for so many ids, in 205 MiB, on any machine, and is good for 1.8 times as many."""

MEMORY_SIEVE_SHARE = 32
"""A larger sieve is made where it takes no more than this part of the memory: 768 MiB of 24 GiB, 250 million ids."""

MEMORY_LEFT_BYTES_MAX = MIB
"""A table of ids that is no larger is kept when its writer is closed: the next one of the process need not read it."""

MEMORY_CACHE_BYTES = 2 * GIB
"""Filters of runs that are kept on this machine, of all logs in buckets together: 2.6 bytes an id."""

MEMORY_FOLD_RECORDS_MAX = 5_000_000
"""Records of which a writer that opens a log makes up for a missing run by itself; beyond, ``oncelog rebuild`` does."""
