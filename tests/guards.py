"""Guards that keep a promise, and the test that finds each one missing: ``make mutants`` takes them out one at a time.

A guard whose test still passes without it is not guarded by anything. The sources are copied, and the copy is changed:
the tree itself is not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Guard(NamedTuple):
    """A promise, where it is kept, the text that keeps it, what is put in its place, and the test that must fail."""

    promise: str
    module: str
    text: str
    instead: str
    test: str


GUARDS = [
    Guard(
        "acknowledged means durable: a block is synced before it is answered for",
        "storage/local/segment_writer.py",
        "        self._disk.sync(descriptor)\n        self._publisher.write(slot)\n",
        "        self._publisher.write(slot)\n",
        "tests/storage/local/test_home_crash.py::test_visible_means_durable",
    ),
    Guard(  # that the file is opened again as well is no guard: a block that is written again is dirty again
        "a failed sync is not believed the second time: what the page cache shows is written again",
        "storage/local/segment_writer.py",
        "        self._disk.write(descriptor, block, self._end)\n",
        "        if self._disk.read(descriptor, len(block[0]), self._end) != bytes(memoryview(block[0])):\n"
        "            self._disk.write(descriptor, block, self._end)\n",
        "tests/storage/local/test_home_crash.py::test_a_failed_sync_is_not_believed_the_second_time",
    ),
    Guard(
        "a block counts as stored only when its sync has succeeded",
        "storage/local/segment_writer.py",
        "            self._sync(descriptor, end, entries)\n",
        "            self._count += 1\n            self._sync(descriptor, end, entries)\n"
        "            self._count -= 1\n",
        "tests/storage/local/test_home_crash.py::test_a_failed_sync_is_not_believed_the_second_time",
    ),
    Guard(
        "a block that was begun is written again after a failure",
        "storage/local/segment_writer.py",
        "descriptor, is_begun = self._reopen(), False",
        "descriptor = self._reopen()",
        "tests/storage/local/test_home_crash.py::test_a_block_that_was_begun_is_written_again_after_a_failure[sync]",
    ),
    Guard(
        "nothing is acknowledged into a file that nobody can find",
        "storage/local/segment_writer.py",
        "if self._disk.identity(self._path) != self._identity:",
        "if False:",
        "tests/storage/local/test_segment_writer.py::test_a_write_into_nowhere_is_not_acknowledged[removed]",
    ),
    Guard(
        "a file that shrinks is an error",
        "storage/local/segment_reader.py",
        "if data.size < end - begin:",
        "if False:",
        "tests/storage/local/test_segment_reader.py::test_a_segment_that_shrinks_is_an_error",
    ),
    Guard(
        "the same id with other content is a conflict",
        "log/append/decider.py",
        "conflict = fingerprint != stored_fingerprint",
        "conflict = False",
        "tests/log/test_log_contract.py::TestMemory::test_a_conflict_is_in_the_future",
    ),
    Guard(
        "close ends wherever it is called",
        "handle.py",
        "    return frame is not None\n",
        "    return False\n",
        "tests/crash/test_close_anywhere.py::test_a_callback_may_close[3]",
    ),
    Guard(
        "who closes finds every future answered",
        "log/append/committer.py",
        "self._wait_until_told(deadline_us)  #",
        "pass  #",
        "tests/log/append/test_append_pipelined.py::test_who_closes_finds_every_future_answered",
    ),
    Guard(
        "what is submitted does not overtake what stands at the door",
        "log/submitting.py",
        "if not self._door.count and self",
        "if self",
        "tests/log/test_submitting.py::test_nothing_overtakes_what_stands_at_the_door",
    ),
    Guard(
        "nothing is submitted to a writer that leaves",
        "log/append/committer.py",
        "if core.error is not None or core.leaving is not None or core.failures",
        "if core.failures",
        "tests/log/append/test_append_unanswered.py::TestLeaving::test_nothing_is_taken_while_the_segment_is_being_closed",
    ),
    Guard(
        "a fenced writer says unknown of rows whose first pieces may be stored",
        "log/append/committer.py",
        "if crowd.pieces > 1 and",
        "if False and",
        "tests/log/test_submitting.py::test_a_fenced_writer_says_unknown_of_a_table_in_pieces",
    ),
    Guard(
        "a no is said only by the holder of the log",
        "streams/event_writer.py",
        "            inner.check_held(writer)\n        except WriterFenced:\n            self.leave(writer)",
        "            pass\n        except WriterFenced:\n            self.leave(writer)",
        "tests/streams/test_streams_criteria.py::test_the_old_holder_does_not_refuse_a_version",
    ),
    Guard(
        "in a bucket, a writer whose place is taken is fenced",
        "storage/bucket/home.py",
        "if not self.create(key, block) and not self.read(key).equals(joined(block)):",
        "if not self.create(key, block) and False:",
        "tests/storage/bucket/test_home_contract.py::TestInMemory::test_a_fence_stops_the_writer_for_ever",
    ),
    Guard(
        "no symbolic link is written through",
        "storage/local/links.py",
        "            return os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)",
        "            return os.open(path.name, flags, dir_fd=folder)",
        "tests/storage/local/test_links.py::test_a_file_that_is_a_link_is_not_written_through",
    ),
    Guard(
        "offsets of a forged block are not followed",
        "format/payload/soundness.py",
        "    if full or payload.num_rows <= _SMALL_ROWS_MAX:\n        payload.validate(full=True)\n",
        "    if full or payload.num_rows <= _SMALL_ROWS_MAX:\n        pass\n",
        "tests/format/payload/test_soundness.py::test_an_offset_outside_of_its_column_is_refused",
    ),
    Guard(
        "a table that a writer left is taken only if nobody has written since",
        "log/takeover/recovery.py",
        "return before == (",
        "return True or before == (",
        "tests/log/takeover/test_recovery.py::test_another_process_wrote_in_between",
    ),
    Guard(
        "a name of a producer of batches belongs to its query",
        "log/ingest/batch_marks.py",
        "if mark is not None and mark.owner != batch.owner:",
        "if False:",
        "tests/log/ingest/test_ingester.py::test_a_producer_belongs_to_its_query",
    ),
    Guard(
        "a token that has expired is no token",
        "server/security/authorize.py",
        "if known is None or self._is_over(known.token.expires_us):",
        "if known is None:",
        "tests/server/security/test_authorize.py::test_a_token_is_known_until_it_expires_or_is_revoked",
    ),
    Guard(
        "on a quorum, a block counts when enough nodes hold it",
        "storage/quorum/registers.py",
        "        while copies < ack:\n",
        "        while copies < min(ack, 1):\n",
        "tests/storage/quorum/test_registers.py::test_fewer_copies_than_acks_are_no_acknowledgement",
    ),
    Guard(
        "a writer that is dropped lets its log go",
        "log/writer.py",
        "            close_soon(ending)",
        "            pass",
        "tests/log/test_ending.py::test_a_dropped_writer_lets_its_log_go[file-None]",
    ),
    Guard(
        "an outage of a disk does not age the ids of an idle writer",
        "storage/local/lock.py",
        "        except OSError:\n            return False\n",
        "        except OSError:\n            return True\n",
        "tests/storage/local/test_lock.py::test_a_claim_tells_whether_its_disk_answers",
    ),
    Guard(
        "who was revoked hears nothing more of a log that is written all the time",
        "server/http/events.py",
        "                if not is_valid():\n",
        "                if piece is None and not is_valid():\n",
        "tests/server/http/calls/test_tails.py"
        "::test_a_revoked_token_hears_nothing_more_of_a_log_that_is_written_all_the_time[tail?start=0]",
    ),
    Guard(
        "hooks that share a log say how their ids are told apart",
        "server/http/calls/hooks.py",
        "if other is not hook and None in (",
        "if False and None in (",
        "tests/server/http/calls/test_hooks.py::test_hooks_that_share_a_log_say_how_their_ids_are_told_apart",
    ),
    Guard(
        "a folder has one server, however its URL is spelt",
        "server/process.py",
        "folder_lock.holding(database.url)",
        "folder_lock.holding(settings.url)",
        "tests/server/test_process.py::test_a_database_that_is_named_by_a_path_or_a_profile_has_one_server_too",
    ),
    Guard(
        "a log that is deleted is not opened meanwhile",
        "server/seats.py",
        "            if name in self._leaving:",
        "            if False:",
        "tests/server/test_seats.py::test_a_log_that_is_deleted_is_not_opened_meanwhile",
    ),
    Guard(
        "an idle consumer asks once a second for all its partitions",
        "queue/deliver/pace.py",
        "        if partition != self._next or now_us < self._next_us:",
        "        if False:",
        "tests/queue/test_queue_bucket.py::test_an_idle_consumer_of_many_partitions_asks_once_a_second",
    ),
    Guard(
        "no password of the storage is in Spark's event log",
        "spark/pipeline/rows/source_files.py",
        "if not _SECRETS.search(name)}",
        "}",
        "tests/spark/pipeline/rows/test_source_files.py::test_no_password_is_in_the_event_log",
    ),
    Guard(
        "how far a producer is, is said only by the holder of the log",
        "log/append/open_segment.py",
        "if newest is None or newest.manifest.epoch != self.epoch:",
        "if False:",
        "tests/log/test_producer.py::test_the_old_holder_does_not_say_how_far_a_producer_is",
    ),
    Guard(
        "what the gate calls COMMITTED is not sent again",
        "queue/send/sender.py",
        "        if not committed:\n            return {}",
        "        if True:\n            return {}",
        "tests/queue/send/test_sender.py::"
        "test_what_is_committed_is_not_sent_again_when_the_log_has_forgotten_it[sqlite]",
    ),
    Guard(
        "nothing is acknowledged into a state that was removed",
        "queue/state/sqlite.py",
        "if self._identity is not None and self._found() != self._identity:",
        "if False:",
        "tests/queue/state/test_sqlite.py::test_nothing_is_acknowledged_into_a_file_that_was_removed",
    ),
    Guard(
        "a dead letter goes back only to a group that is there",
        "queue/deliver/dead_letters.py",
        "there = [entry for entry, group in zip(batch, homes, strict=True) if group in groups]",
        "there = batch",
        "tests/queue/test_queue_driftq.py::test_redrive_to_a_group_that_was_removed_leaves_the_letter[sqlite]",
    ),
    Guard(
        "messages are not blamed for an inbox that cannot be used",
        "workers/worker.py",
        "return not isinstance(error, IdConflict | EffectFailed | HandlerExit)",
        "return isinstance(error, Unavailable)",
        "tests/workers/test_worker.py::test_while_the_inbox_cannot_be_used_nothing_is_spent[False]",
    ),
    Guard(
        "messages are not blamed for an inbox that may only be read",
        "workers/worker.py",
        "inner.probe(self._inbox)",
        "self._inbox.ping()",
        "tests/workers/test_worker.py::test_while_the_inbox_may_only_be_read_nothing_is_spent",
    ),
    Guard(
        "a reader over the wire stays in its log",
        "client/reading.py",
        "            chosen_columns=self._columns is not None,\n            log_id=self._log.log_id,\n",
        "            chosen_columns=self._columns is not None,\n",
        "tests/client/test_reading.py::test_a_reader_does_not_go_on_in_another_log_of_the_name",
    ),
    Guard(
        "a message that another process took is not leased again",
        "queue/deliver/broker.py",
        "                ahead.drop(cursor)\n",
        "                pass\n",
        "tests/queue/deliver/test_broker.py::test_a_claim_takes_no_message_that_another_process_took[sqlite]",
    ),
    Guard(
        "a claim without a look counts only if nobody else claimed",
        "queue/deliver/broker.py",
        "if outlook.paused or not (was_alone or self._has_looked):",
        "if outlook.paused:",
        "tests/queue/deliver/test_broker.py::test_a_claim_without_a_look_passes_over_nothing[sqlite]",
    ),
    Guard(
        "a claim without a look delivers nothing of a paused group",
        "queue/deliver/broker.py",
        "if outlook.paused or not (was_alone or self._has_looked):",
        "if not (was_alone or self._has_looked):",
        "tests/queue/deliver/test_broker.py::test_a_claim_without_a_look_sees_that_the_group_was_paused[sqlite]",
    ),
    Guard(
        "rows that a tail could not hand out are not passed over",
        "log/read/reader.py",
        "        made = make(rows.cut(0, limit))\n",
        "        self._rows.popleft()\n        made = make(rows.cut(0, limit))\n        self._rows.appendleft(rows)\n",
        "tests/log/read/test_reader_tail.py::test_rows_of_which_nothing_can_be_made_stay",
    ),
    Guard(
        "a stopped neighbour stalls nobody",
        "queue/deliver/consumer.py",
        "with contextlib.suppress(StateBusy):",
        "with contextlib.nullcontext():",
        "tests/queue/test_queue_frozen.py::test_on_sqlite_who_waits_gets_nothing_in_its_own_time",
    ),
    Guard(
        "settings that cannot be read lock nobody out",
        "queue/state/statements.py",
        "        return QueueSettings(), str(error)",
        "        raise",
        "tests/queue/state/test_statements.py::test_a_queue_whose_settings_cannot_be_read_can_be_deleted[sqlite]",
    ),
    Guard(
        "an inbox key is taken over only as it was seen",
        "inbox/stores/sql.py",
        "WHERE id = :id AND status = :was_status AND nonce = :was_nonce AND token = :was_token RETURNING token",
        "WHERE id = :id AND :was_status = :was_status AND :was_nonce = :was_nonce AND :was_token = :was_token "
        "RETURNING token",
        "tests/inbox/test_inbox_races.py::test_of_two_who_saw_a_lease_run_out_one_takes_the_key",
    ),
    Guard(
        "an inbox key is committed only by the one who has it",
        "inbox/stores/sql.py",
        "WHERE id = :id AND status = :was_status AND nonce = :was_nonce RETURNING 1",
        "WHERE id = :id AND status = :was_status AND :was_nonce = :was_nonce RETURNING 1",
        "tests/inbox/test_inbox_races.py::test_one_whose_key_was_taken_over_cannot_commit_it",
    ),
    Guard(
        "a text that tells a wrong length does not move the texts behind it: only Python's own text is taken as it is",
        "format/payload/plain.py",
        "    kinds = list(map(type, texts))\n",
        "    kinds = [str if isinstance(text, str) else type(text) for text in texts]\n",
        "tests/format/payload/test_plain.py::test_a_text_that_is_no_plain_text_is_looked_at[of a subclass-id]",
    ),
    Guard(
        "subclasses are stored as what they are",
        "format/payload/intake.py",
        "    return msgspec.structs.replace(record, **changes) if changes else record",
        "    return record",
        "tests/bad_input/test_records.py::test_subclasses_are_stored_as_what_they_are",
    ),
    Guard(
        "keys that are not sorted do not take the quick way into a sieve, which would lose some",
        "dedup/runs/sieve.py",
        "        if bool((homes[1:] < homes[:-1]).any()):\n",
        "        if False:\n",
        "tests/dedup/runs/test_sieve.py::test_keys_are_added_alike_in_any_order[300]",
    ),
    Guard(
        "loose keys: a search for one key puts the loose keys into the slots first",
        "dedup/window.py",
        "        if self._loose:\n            self._index_loose()\n        ring, head = self._ring, self._head\n",
        "        ring, head = self._ring, self._head\n",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: a search for many keys puts the loose keys into the slots first",
        "dedup/window.py",
        "        if self._loose:\n            self._index_loose()\n        if len(keys) <= _FEW:\n",
        "        if len(keys) <= _FEW:\n",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: the sieve gets the keys that came another way",
        "dedup/table.py",
        "        if low < self._head:\n            sieve.put(",
        "        if False:\n            sieve.put(",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: a sieve that is emptied gets all keys again",
        "dedup/table.py",
        "        self._sifted = self._sifted_to = 0  # first",
        "        self._sifted = 0  # first",
        "tests/dedup/test_compiled.py::test_a_sieve_that_was_emptied_has_the_keys_that_stayed[4-numba]",
    ),
    Guard(
        "loose keys: a key that passes the sieve is looked for among the loose keys",
        "dedup/table.py",
        "        return any(_has(loose, key) for key in few)\n",
        "        return False\n",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: a key is looked for in its own batch",
        "dedup/table.py",
        " or not distinct(keys)",
        "",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: a key that passes the sieve is looked for in the slots",
        "dedup/table.py",
        "        if (self._slots.find(few, self._tail) >= 0).any():\n            return True\n",
        "",
        "tests/dedup/test_compiled.py::test_keys_that_only_a_sieve_has_seen_are_known",
    ),
    Guard(
        "loose keys: bits that are lost where keys share a block of a sieve are set again",
        "dedup/runs/sieve.py",
        "            np.bitwise_or.at(self._words, homes[lost], pattern[lost])\n",
        "",
        "tests/dedup/runs/test_compiled.py::test_keys_are_put_into_a_sieve_alike",
    ),
    Guard(
        "loose keys: a search that was interrupted begins again",
        "dedup/window.py",
        "        low = self._head - self._loose\n        self._loose = self._head - self._tail\n",
        "        low = self._head - self._loose\n        self._loose = 0\n",
        "tests/dedup/test_compiled.py::test_a_search_that_was_interrupted_leaves_no_key_unknown[0-numpy]",
    ),
    Guard(
        "fingerprints that are owed: a key is not committed without its own",
        "dedup/window.py",
        "        if self._owed:\n            self._finish_before(before_position)\n",
        "",
        "tests/dedup/test_window_owed.py::test_fingerprints_that_are_owed_are_there_when_they_are_asked_for[numpy-table-commit]",
    ),
    Guard(
        "fingerprints that are owed: nobody reads the one that stood there before",
        "dedup/window.py",
        "        if self._owed and len(handles) and int(handles.max()) >= self._owed[0][0]:\n",
        "        if False:\n",
        "tests/dedup/test_window_owed.py::test_fingerprints_that_are_owed_are_there_when_they_are_asked_for[numpy-table-many]",
    ),
    Guard(
        "fingerprints that are owed: finish begins again where it was interrupted",
        "dedup/window.py",
        "            self._ring.write(self._ring.fingerprints, low, fingerprints())\n            del self._owed[0]\n",
        "            del self._owed[0]\n            self._ring.write(self._ring.fingerprints, low, fingerprints())\n",
        "tests/dedup/test_window_owed.py::test_a_finish_that_was_interrupted_is_done_again[numpy-table]",
    ),
    Guard(
        "loose keys: slots that were not built in full are built again",
        "dedup/window.py",
        "        self._loose = self._head - self._tail\n        self._slots = Slots(",
        "        self._slots = Slots(",
        "tests/dedup/test_compiled.py::test_slots_that_were_not_built_again_in_full_are_built_again",
    ),
    Guard(
        "loose keys: no interrupt comes between what a drop changes",
        "dedup/window.py",
        "        ring.origin, self._tail, self._ghosts, self._loose = origin, tail, ghosts, loose",
        "        ring.origin, self._tail, self._ghosts = origin, tail, ghosts\n        self._loose = loose",
        "tests/dedup/test_compiled.py::test_a_drop_that_was_interrupted_lets_no_key_in_again[numpy]",
    ),
    Guard(
        "a writer that has ended does not search the table of the next one",
        "log/append/admitter.py",
        "        self._committer.check()  # the table of",
        "        # the table of",
        "tests/log/takeover/test_recovery.py::test_a_writer_that_has_left_its_table_does_not_touch_it",
    ),
    Guard(
        "a writer that has ended does not truncate the table of the next one",
        "log/upkeep/memory_keeper.py",
        " and self._committer.error is None:  # else",
        ":  # else",
        "tests/log/takeover/test_recovery.py::test_a_writer_that_has_left_its_table_does_not_touch_it",
    ),
    Guard(
        "look-ups see a run before the table lets go of its ids",
        "log/upkeep/memory_keeper.py",
        "        self._recall.show(runs, built=built)  # first",
        "        if self._table is not None:\n            self._table.drop_before(until)\n"
        "        self._recall.show(runs, built=built)  # first",
        "tests/log/memory/test_memory_together.py"
        "::test_ids_that_move_into_a_run_are_known_though_that_is_interrupted[False]",
    ),
    Guard(
        "a small file is not written again for a segment that is large by itself",
        "log/upkeep/sealing.py",
        "if group and (is_apart or not total.plus(weight).fits(target)):",
        "if group and not total.plus(weight).fits(target):",
        "tests/log/upkeep/test_sealing.py::test_a_file_is_not_written_again_for_a_large_segment",
    ),
    Guard(
        "a sealed file is bounded by its raw bytes",
        "log/upkeep/sealing.py",
        "            and self.raw_bytes <= target.raw_bytes\n",
        "",
        "tests/log/upkeep/test_sealing.py::test_records_that_compress_well_do_not_all_end_in_one_file",
    ),
    Guard(
        "a publication that was overtaken does not take a Delta table back",
        "tables/delta.py",
        "if known is not None and known > state.version:",
        "if False:",
        "tests/tables/test_publishing.py::test_publication_that_was_overtaken_changes_nothing[delta]",
    ),
    Guard(
        "a publication that was overtaken does not take an Iceberg table back",
        "tables/iceberg.py",
        "if int(table.properties.get(_VERSION, -1)) > state.version:",
        "if False:",
        "tests/tables/test_publishing.py::test_publication_that_was_overtaken_changes_nothing[iceberg]",
    ),
    Guard(
        "a stale Iceberg table is not committed by a retry",
        "tables/iceberg.py",
        'properties = {_RETRIES: "0", ',
        "properties = {",
        "tests/tables/test_publishing.py::test_another_commit_between_comparison_and_commit[iceberg]",
    ),
    Guard(
        "files that left a table are removed only if no kept snapshot needs them",
        "tables/iceberg.py",
        "gone = _paths_in(table, old) - _paths_in(table, kept)",
        "gone = _paths_in(table, old)",
        "tests/tables/test_publishing.py::test_old_versions_and_their_files_go[iceberg]",
    ),
    Guard(
        "a key that is twice on one line of many is not taken for clean",
        "spark/reading/json_text.py",
        "if len(objects) != len(chunk) or colons != fields:",
        "if len(objects) != len(chunk):",
        "tests/spark/reading/test_json_text.py::test_faults_of_two_lines_do_not_make_up_for_each_other",
    ),
    Guard(
        "two objects on one line of many are not taken for clean",
        "spark/reading/json_text.py",
        "if (found[first] != _OPEN).any() or (found[last] != _CLOSE).any():",
        "if False:",
        "tests/spark/reading/test_json_text.py::test_faults_of_two_lines_do_not_make_up_for_each_other",
    ),
    Guard(
        "memory: what is in no run that was looked at is new only if no run was built since",
        "log/memory/recall.py",
        "return looked is None or looked.built == self.view.built",
        "return True",
        "tests/log/memory/test_memory_schedule.py::test_a_retry_meets_its_original_in_every_order[many]",
    ),
    Guard(
        "memory: a file is looked up again when ids left the table meanwhile",
        "log/ingest/adopter.py",
        "if self._recall.view.built == built:",
        "if True:",
        "tests/log/memory/test_memory_adoption.py::test_what_happens_while_a_file_is_looked_up_in_the_table[build]",
    ),
    Guard(
        "memory: what is pending makes no row of a file known",
        "log/ingest/adopter.py",
        "            hits = hits[window.positions(handles[hits]) < position]\n",
        "",
        "tests/log/memory/test_memory_adoption.py::test_what_happens_while_a_file_is_looked_up_in_the_table[fail]",
    ),
    Guard(
        "memory: a writer that is closed does not wait for a merge",
        "log/upkeep/memory_keeper.py",
        "manifest.first_position, self._make_way, passing",
        "manifest.first_position, lambda: None, passing",
        "tests/log/memory/test_memory_together.py::test_a_writer_that_is_closed_does_not_wait_for_a_merge",
    ),
    Guard(
        "memory: a long merge makes way for ids that wait",
        "log/upkeep/memory_keeper.py",
        "        if self.is_urgent:",
        "        if False:",
        "tests/log/upkeep/test_sifting.py::test_a_long_merge_makes_way_for_ids_that_wait[memory]",
    ),
    Guard(
        "memory: a merge inside a merge takes newer runs",
        "log/upkeep/memory_keeper.py",
        " if run.first_position >= until]",
        "]",
        "tests/log/upkeep/test_sifting.py::test_a_merge_inside_a_merge_takes_newer_runs[memory]",
    ),
    Guard(
        "memory: a run is behind the sieve only if all that it was merged of is",
        "log/memory/run_sieve.py",
        "return all(run.key in self.keys for run in runs)",
        "return True",
        "tests/log/memory/test_run_sieve.py::test_a_merged_run_is_behind_the_sieve_if_all_its_inputs_are[3]",
    ),
    Guard(
        "memory: runs that the sieve does not know are asked for every id",
        "log/memory/run_set.py",
        "if each.run.key not in keys)",
        "if False)",
        "tests/log/memory/test_run_sieve.py::test_runs_before_and_behind_a_sieve_are_searched[behind1]",
    ),
    Guard(
        "memory: a run that comes after its segments changed is refused",
        "log/memory/coverage.py",
        "return _replaced(manifest, run, replaced, stretch.beside) if there else manifest",
        "return _replaced(manifest, run, replaced, stretch.beside)",
        "tests/log/memory/test_coverage.py::test_what_no_longer_fits_changes_nothing",
    ),
    Guard(
        "memory: a snapshot that is ahead of the log is never believed, however long the log becomes",
        "log/stored/snapshots.py",
        "        if head.reach > next_position:\n            home.delete(key)\n",
        "        if head.watermark <= next_position < head.reach:\n            home.delete(key)\n",
        "tests/log/stored/test_snapshots.py::TestSnapshots::test_of_a_log_that_went_on_elsewhere_is_not_believed",
    ),
    Guard(
        "a copy never refers to what another copier has deleted",
        "log/jobs/copy.py",
        "elif before is not None and not is_alone:",
        "elif False:",
        "tests/log/jobs/test_copy.py::test_a_copier_that_is_late_takes_nothing_back",
    ),
    Guard(
        "an index of streams that is ahead of the log is never believed, however long the log becomes",
        "log/stored/stream_index.py",
        "if reach > next_position:",
        "if False:",
        "tests/streams/test_index.py::test_what_is_ahead_of_the_log_is_not_believed_when_the_log_has_grown",
    ),
    Guard(
        "memory: a run that is not sound goes only together with one that has all its ids",
        "log/jobs/rebuild_memory.py",
        "yield from [parts] if key is not None else ([part] for part in parts)",
        "yield from ([part] for part in parts)",
        "tests/log/jobs/test_rebuild_memory.py::test_a_lost_run_stays_until_all_its_ids_are_in_another",
    ),
    Guard(
        "memory: the keeper does not take back what an adoption shows",
        "log/upkeep/memory_keeper.py",
        "if self._recall.view.runs is not before:",
        "if False:",
        "tests/log/memory/test_memory_together.py::test_a_run_that_an_adoption_shows_is_not_taken_back",
    ),
    Guard(
        "memory: of a bounded window, hits in a run count by their file",
        "log/append/decisions.py",
        "(recalled.positions > positions) & self.adopted.have(recalled.positions)",
        "(recalled.positions > positions)",
        "tests/log/memory/test_memory_bounded.py::test_appended_ids_in_a_run_count_as_the_window_says",
    ),
    Guard(
        "memory: the program that made a log opens the log after an upgrade",
        "settings.py",
        "if given.window == Window() and stored.window in FORMER_WINDOWS:",
        "if False:",
        "tests/golden/test_database.py::test_the_same_program_opens_its_log_after_the_upgrade",
    ),
    Guard(
        "a server refuses a sequence without a producer: all its callers would share one name",
        "server/desk.py",
        "                _check_named(ask.loaded)\n",
        "                pass\n",
        "tests/server/test_desk.py::test_a_sequence_without_a_producer_is_refused",
    ),
    Guard(
        "'not written' is true of every frame of a call",
        "client/writer.py",
        "    return partly(first) if stored and not isinstance",
        "    return partly(first) if False and not isinstance",
        "tests/client/test_writer.py::test_not_written_is_said_only_if_it_is_true_of_every_frame",
    ),
    Guard(
        "a forked child builds its runs in memory of its own",
        "format/output.py",
        "flags=mmap.MAP_PRIVATE)",
        "flags=mmap.MAP_SHARED)",
        "tests/format/test_output.py::test_a_forked_child_does_not_write_into_a_piece_of_its_parent",
    ),
    Guard(
        "ids are not hashed where bytes stand the other way round",
        "dedup/identity.py",
        'if sys.byteorder != "little":',
        "if False:",
        "tests/dedup/test_identity.py::test_other_byte_orders_are_refused",
    ),
    Guard(
        "a request that Ctrl-C cut off stops the log's time no longer than until all is stored",
        "log/append/core.py",
        "            self.uptime.forget_asked(now_us)\n",
        "            pass\n",
        "tests/log/append/test_uptime_away.py::test_ctrl_c_as_storage_is_asked_does_not_stop_the_time",
    ),
]


def is_found(guard: Guard) -> bool:
    """Take a guard out of a copy of the sources; tell whether its test fails then."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        module = source / "oncelog" / guard.module
        text = module.read_text()
        assert text.count(guard.text) >= 1, f"{guard.module} has no such guard any more: {guard.text!r}"
        module.write_text(text.replace(guard.text, guard.instead, 1))
        path = f"{source}{os.pathsep}{ROOT}"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", guard.test]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
    assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
    return done.returncode == 1


def main() -> int:
    """Take out every guard, or those whose promise holds the words given; print the score."""
    chosen = [guard for guard in GUARDS if all(word in guard.promise for word in sys.argv[1:])]
    missed = []
    for guard in chosen:
        found = is_found(guard)
        missed += [] if found else [guard]
        sys.stdout.write(f"{'found ' if found else 'MISSED'}  {guard.promise}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - len(missed)} of {len(chosen)} guards are found missing by their test\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
