"""Defects that the simulated worlds must find: each breaks one rule of the protocol."""

from __future__ import annotations

from tests.faults.marking_mutants import MARKING_MUTANTS
from tests.mutations import Mutation

MANIFEST = "wal3_core.format.manifest:Manifest."

# Rare defects: more than twenty worlds did not find them. `make mutants` runs them, `make test-all` the others.
RARE = {
    "a fleet never opens a log again that was replaced",
    "an unanswered CAS is taken for failed",
    "appended again after an unanswered CAS",
    "a plan fails while consumers move their cursors",
    "an ordered writer appends records behind an unknown outcome",
    "the seal is ignored",
    "fragments are committed out of order",
    "records of one append share an offset",
    "the clock is compared with the store's once only",
    "an unknown outcome is taken for not durable when the writer is resumed",
    "cursors are not read again before pruning",
    "an announced collection is ignored when a cursor or pin is written",
    "complete pins are ignored before deleting",
    "the fence is not moved before orphans are deleted",
    "a snapshot is deleted before the objects below it",
    "the interval is measured by the collector's own clock",
    "a refused seal is taken for done",
    "copied fragments are not verified",
    "a cursor store continues in a later log of the name",
    "a copy is completed over another copy's claim",
    "handing out drops what was not committed yet",
    "the end of the log is read before the fence is moved",
}

MUTANTS = (
    Mutation(
        "acknowledged before the CAS", "WriteLoop._commit", "refused or _.commit(...)", "refused or Committed(base)"
    ),
    Mutation(
        "an unanswered CAS is taken for done",
        "Committer._commit_onto",
        "if isinstance(outcome, Unknown): ...",
        "if isinstance(outcome, Unknown): return Committed(base)",
    ),
    Mutation(
        "a refused CAS that may still be applied is taken for failed",
        "Committer._commit_onto",
        "if isinstance(outcome, Refused): ...",
    ),
    Mutation(
        "an unanswered CAS is taken for failed",
        "Committer._commit_onto",
        "Undetermined(_) if unresolved else Failed(cause, _1)",
        "Failed(cause, _1)",
    ),
    Mutation(
        "appended again after an unanswered CAS",
        "Committer._commit_onto",
        "return _ if unresolved else Failed(cause, _)",
        "return Displaced(base, cause, contended=True)",
    ),
    Mutation(
        "a refused CAS is not looked up in the epoch table",
        "judge",
        "durability is not Durability.NOT_DURABLE",
        "durability is Durability.UNKNOWN",
    ),
    Mutation(
        "the epoch table counts one fragment too many", "Manifest.durability", "_1 <= seq_no < _2", "_1 <= seq_no <= _2"
    ),
    Mutation(
        "the snapshot's name does not cover the fence",
        "Snapshot.to_bytes",
        "strict_json.dump_members(_1, _2)",
        "strict_json.dump_members(_1, _2) | {'fence': 0}",
    ),
    Mutation(
        "a snapshot is used before it is durable",
        "Snapshotter._write",
        "_.write(snapshot, ...)",
        "snapshot.pointer_to(snapshot.to_bytes())",
    ),
    Mutation(
        "a writer of one append writes no snapshots that are due",
        "Snapshotter.begin",
        "self._busy or _1",
        "not self._busy or _1",
    ),
    Mutation(
        "a writer's first commit does not wait for snapshots that are due",
        "Snapshotter.begin",
        "self._busy = self._awaited = True",
        "self._busy = True",
    ),
    Mutation(
        "a node that absorbs the one before it drops a pointer",
        "build_snapshot",
        "opened(run, _1, load)",
        "opened(run, _1, load)[int(run[0].depth == _1):]",
    ),
    Mutation(
        "a snapshot replaces one pointer more than it holds",
        "Manifest.apply_repack",
        "held[_1 + len(replaced):]",
        "held[_1 + len(replaced) + 1:]",
    ),
    Mutation(
        "the seal is ignored",
        "judge",
        "manifest.seal is not None",
        "manifest.seal is None and manifest.generation == 0",
    ),
    Mutation(
        "the epoch is not raised",
        "WritePosition.begin_term",
        "manifest.last_epoch + 1",
        "max(1, manifest.last_epoch)",
    ),
    Mutation(
        "all writers have one token", "WritePosition.begin_term", "_ + self._runtime.token()[_:]", '"0123456789abcdef"'
    ),
    Mutation("the generation does not rise", "ManifestStore.prepare", "_1.generation + 1", "_1.generation"),
    Mutation("a commit forgets to add to the setsum", "Manifest.apply_fragments", "self.setsum + _", "self.setsum"),
    Mutation("an unanswered upload is taken for done", "write_immutable", "cause = outcome.cause", "return"),
    Mutation(
        "a refused upload is taken for done where there is no object",
        "write_immutable",
        "found == data",
        "found == data or found is None",
    ),
    Mutation(
        "fragments are committed out of order",
        "WriteLoop._commit",
        "list(takewhile(_, _1))",
        "[flight for flight in _1 if flight.pointer is not None]",
    ),
    Mutation("records of one append share an offset", "_acknowledge_each", "offset += _", "offset += 1"),
    Mutation(
        "a record's time follows the clock backwards",
        "WritePosition.place",
        "max(self._clock.now_us(), _)",
        "self._clock.now_us()",
    ),
    Mutation(
        "the store is not asked for its time",
        "LogClock._plausible",
        "if seen is None or _1: ...",
        "if seen is None:\n    return True\nif _1: ...",
    ),
    Mutation(
        "the clock is compared with the store's once only",
        "LogClock._plausible",
        "return timestamp_us <= _",
        "return True",
    ),
    Mutation(
        "a fragment whose time is too far ahead is committed",
        "LogClock._refusal",
        "latest_us <= store_us + _1",
        "latest_us <= store_us + _1 or found is not None",
    ),
    Mutation(
        "memory of finished appends is not released",
        "OutcomeQueue._release",
        "self.bytes_released += _",
        "self.bytes_released += 0 * sum(append.columns.bytes_held for append in appends)",
    ),
    Mutation("a timer that has fired is not set again", "WriteLoop._on_timer", "self._timer = None"),
    Mutation(
        "an ordered writer appends records behind a failed upload",
        "HaltState.stop",
        "self.ordered and self.failure is None",
        "self.ordered and self.failure is None and undetermined",
    ),
    Mutation(
        "an ordered writer appends records behind an unknown outcome",
        "HaltState.stop",
        "self.ordered and self.failure is None",
        "self.ordered and self.failure is None and not undetermined",
    ),
    Mutation(
        "an unknown outcome is taken for not durable when the writer is resumed",
        "HaltState.resume",
        "verdict is Durability.DURABLE and _1",
        "verdict is Durability.UNKNOWN and _1",
    ),
    Mutation(
        "a condition is refused by the writer's own guess of the end",
        "CommitResultHandler.refuse_unmet",
        "_1 and not self._in_flight and _.seen_s >= _",
        "_1",
    ),
    Mutation(
        "a condition is refused by a manifest loaded before the call",
        "CommitResultHandler.refuse_unmet",
        "_1 and _.seen_s >= _",
        "_1",
    ),
    Mutation(
        "a condition is not checked again when new positions are taken",
        "CommitResultHandler._head_is_unmet",
        "not _1.may_land_at(_2)",
        "not _1.contentions and not _1.may_land_at(_2)",
    ),
    Mutation(
        "an append refused for lack of memory is appended all the same",
        "Admission.drop_withdrawn",
        "append.withdrawn",
        "append.withdrawn and append.admitted is None",
    ),
    Mutation(
        "a cursor is moved without comparing its version",
        "DocumentStore.swap",
        "_1.replace(path, data, etag)",
        "_1.replace(path, data, _1.get(path).etag)",
    ),
    Mutation(
        "a cursor that another process moved is reported as a store without an answer",
        "DocumentStore.swap",
        "_ != etag",
        "found is None and etag is not None",
    ),
    Mutation(
        "a delete removes the object and leaves no tombstone",
        "NamedStore.delete",
        "for _1 in _2: ...",
        "if self._documents.delete(path) is None:\n    return\nfor _1 in _2: ...",
    ),
    Mutation(
        "cursors are not read again before pruning",
        "Planner._kept_below",
        "self._offsets()",
        '{"none": first.position.offset}',
    ),
    Mutation(
        "a plan fails while consumers move their cursors",
        "Planner.plan",
        "manifest = self._stores.manifests.load().manifest",
        "for _ in range(3):\n"
        "    manifest = self._stores.manifests.load().manifest\n"
        "    before, cursors = cursors, self._offsets()\n"
        "    if before == cursors:\n"
        "        break\n"
        "else:\n"
        "    raise AssertionError('cursors moved')",
    ),
    Mutation(
        "a garbage document without its mark is never finished",
        "Collector.resume_unpruned",
        "meta.path not in _1",
        "meta.path in _1",
    ),
    Mutation(
        "an announced collection is ignored when a cursor or pin is written",
        "Manifest.first_kept",
        "self.first if _ else _",
        "self.first",
    ),
    Mutation(
        "a saved cursor is not compared with the manifest",
        "CursorStore._check_still_held",
        "position.offset >= _1",
        "position.offset >= 0 * _1",
    ),
    Mutation(
        "a fragment is collected although a cursor needs a record of it",
        "cut_below",
        "pointer.limit.offset <= _1",
        "pointer.start.offset < _1",
    ),
    Mutation("the snapshot of the kept part is not written", "Collector._prune_onto", "_.snapshots.write(...)"),
    Mutation("garbage is deleted as soon as it is pruned", "Deleter._wait_s", "max(0.0, ...)", "0.0 * max(0.0, ...)"),
    Mutation(
        "complete pins are ignored before deleting",
        "_pinned",
        "pins = _1",
        "pins = [pin for pin in _1 if not pin.complete]",
    ),
    Mutation("the fence is not moved before orphans are deleted", "Collector._prune_orphans", "_1.move_fence()", "_1"),
    Mutation(
        "a snapshot is deleted before the objects below it",
        "Deleter._delete_tree",
        "left = done.num_left",
        "left = done.num_left\nself._stores.objects.delete(pointer.path)",
    ),
    Mutation(
        "a cursor saved too late stays below the log's beginning",
        "CursorStore._check_still_held",
        "self._put(_, put_back, _)",
        "str(put_back)",
    ),
    Mutation(
        "a collector marks its document though its CAS was refused",
        "Collector.prune",
        "self._prune_onto(...)",
        "self._prune_onto(...)\nreturn self._set_pruned(path, seen)",
    ),
    Mutation(
        "the interval is measured by the collector's own clock",
        "LogStores.store_now_us",
        "store_now_us(...)",
        "self.runtime.now_us()",
    ),
    Mutation(
        "an orphan is taken for the committed fragment of its number",
        "References._leads_to",
        "return pointer.path == path",
        "return True",
    ),
    Mutation("a refused seal is taken for done", "_install", "isinstance(_1, Installed)", "_1 != Installed"),
    Mutation(
        "the copy's manifest is written first",
        "_Copying._copy",
        "num_fragments = _1\npointers = _2",
        "pointers = _2\nclaim.finish(self._made(plan.manifest, pointers, self._policy(), claim))\nnum_fragments = _1",
    ),
    Mutation(
        "copied fragments are not verified",
        "_Copying._checked",
        "read_fragment(...)[0]",
        'store.read(pointer.path) or b""',
    ),
    Mutation(
        "compacted snapshots are used before they are durable",
        "SnapshotCompactor.compact",
        "self._upload(_1)",
        "str(_1)",
    ),
    Mutation(
        "snapshot compaction loses a fragment",
        "Packer.nodes",
        "opened(siblings, depth, self._load)",
        "opened(siblings, depth, self._load)[bool(known):]",
    ),
    Mutation("no vacancy replaces the manifest of a destroyed log", "_Destroying.run", "int(self._vacate(...))", "1"),
    Mutation(
        "a reader never loads the manifest again",
        "LogReader.manifest",
        "_1.load(self._known)",
        "self._known or _1.load(self._known)",
    ),
    Mutation(
        "a prefetched snapshot is taken for another one",
        "Walk._loaded",
        "self._loading.pop(...)",
        "self._loading.popitem()[1] if self._loading else None",
    ),
    Mutation(
        "the log's id is not compared on load",
        "ManifestStore._checked",
        "found.manifest.log_id != log_id",
        "not log_id",
    ),
    Mutation(
        "a log is created at a destroyed name as if the name were new",
        "ManifestStore.create",
        "self.begin(_1, seen)",
        "self.swap(_1, None)",
    ),
    Mutation(
        "a writer continues in a later log of the name",
        "WriteLoop._recover",
        "self._manifests.load",
        "type(self._manifests)(self._manifests._store, self._runtime).load",
    ),
    Mutation(
        "a cursor store continues in a later log of the name",
        "CursorStore._manifest",
        "self._manifests.load(...)",
        "type(self._manifests)(self._manifests._store, self._runtime).load()",
    ),
    Mutation(
        "a copy is completed over another copy's claim",
        "Claim.finish",
        "_1.begin(manifest, _)",
        "_1.swap(manifest, _1.look())",
    ),
    Mutation(
        "a log is deleted before its name is vacant",
        "_Destroying.run",
        "lives = _1",
        "lives = _1\ndelete_remains(self._root, lives, self._runtime, self._retry)",
    ),
    Mutation(
        "the destroyed log's manifest is deleted",
        "_Destroying._vacate",
        "_.swap(vacancy, seen) is not None",
        'self._root.delete("manifest/MANIFEST.json") is None and vacancy',
    ),
    Mutation(
        "fragments are read in the order they arrive",
        "each_ahead",
        "waiting.popleft()",
        "waiting.pop()",
    ),
    *MARKING_MUTANTS,
)
