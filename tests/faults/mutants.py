"""Defects that the simulated worlds must find: each breaks one rule of the protocol."""

from __future__ import annotations

from tests.faults.marking_mutants import MARKING_MUTANTS
from tests.mutations import Mutation

LOOP = "wal3_core.log.write.write_loop:WriteLoop."
TAIL = "wal3_core.log.write.in_flight:WritePosition."
OUTCOMES = "wal3_core.log.write.commit_results:AckQueue."
HALT = "wal3_core.log.write.commit_results:HaltState."
RESOLVER = "wal3_core.log.write.commit_results:CommitResultHandler."
COMMIT = "wal3_core.log.write.commit:"
SNAPSHOTTER = "wal3_core.log.write.snapshotter:"
COLLECTOR = "wal3_core.log.collect.collector:Collector."
PRUNER = "wal3_core.log.collect.pruner:Pruner."
DELETER = "wal3_core.log.collect.deleter:Deleter."
MANIFEST = "wal3_core.model.manifest:Manifest."
COPYING = "wal3_core.log.maintain.copy.copier:_Copying."
CLAIM = "wal3_core.log.maintain.copy.target:"
DESTROYING = "wal3_core.log.maintain.destroyer:_Destroying."
MANIFESTS = "wal3_core.storage.documents.manifest_store:ManifestStore."

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
        "acknowledged before the CAS",
        LOOP + "_commit",
        "refused or self._committer.commit(base, ready[0].term, pointers, until_s, keyless=keyless(ready))",
        "refused or Committed(base)",
    ),
    Mutation(
        "an unanswered CAS is taken for done",
        COMMIT + "Committer._commit_onto",
        "            if isinstance(outcome, Unknown):\n                unresolved = cause\n",
        "            if isinstance(outcome, Unknown):\n                return Committed(base)\n",
    ),
    Mutation(
        "a refused CAS that may still be applied is taken for failed",
        COMMIT + "Committer._commit_onto",
        "            if isinstance(outcome, Refused):\n                unresolved = cause\n",
        "",
    ),
    Mutation(
        "an unanswered CAS is taken for failed",
        COMMIT + "Committer._commit_onto",
        "return Undetermined(unresolved) if unresolved else Failed(cause,",
        "return Failed(cause,",
    ),
    Mutation(
        "appended again after an unanswered CAS",
        COMMIT + "Committer._commit_onto",
        "return Undetermined(unresolved) if unresolved else Failed(cause, failure or UnavailableError(cause))",
        "return Displaced(base, cause, contended=True)",
    ),
    Mutation(
        "a refused CAS is not looked up in the epoch table",
        COMMIT + "judge",
        "if durability is not Durability.NOT_DURABLE:",
        "if durability is Durability.UNKNOWN:",
    ),
    Mutation(
        "the epoch table counts one fragment too many",
        MANIFEST + "durability",
        "entry.first_seq_no <= seq_no < limit",
        "entry.first_seq_no <= seq_no <= limit",
    ),
    Mutation(
        "the snapshot's name does not cover the fence",
        "wal3_core.model.snapshot:Snapshot.to_bytes",
        '"fence": self.fence,',
        '"fence": 0,',
    ),
    Mutation(
        "a snapshot is used before it is durable",
        SNAPSHOTTER + "Snapshotter._write",
        "self._snapshots.write(snapshot, within(self._options.retry, _WRITE_S))",
        "snapshot.pointer_to(snapshot.to_bytes())",
    ),
    Mutation(
        "a writer of one append writes no snapshots that are due",
        SNAPSHOTTER + "Snapshotter.begin",
        "if self._busy or plan_roll(",
        "if not self._busy or plan_roll(",
    ),
    Mutation(
        "a writer's first commit does not wait for snapshots that are due",
        SNAPSHOTTER + "Snapshotter.begin",
        "self._busy = self._awaited = True",
        "self._busy = True",
    ),
    Mutation(
        "a node that absorbs the one before it drops a pointer",
        "wal3_core.model.tree:build_snapshot",
        "pointers += load(pointer).pointers",
        "pointers += load(pointer).pointers[:-1]",
    ),
    Mutation(
        "a snapshot replaces one pointer more than it holds",
        MANIFEST + "apply_repack",
        "*held[at + len(replaced) :])",
        "*held[at + len(replaced) + 1 :])",
    ),
    Mutation(
        "the seal is ignored",
        COMMIT + "judge",
        "if manifest.seal is not None:",
        "if manifest.seal is None and manifest.generation == 0:",
    ),
    Mutation(
        "the epoch is not raised",
        TAIL + "begin_term",
        "manifest.last_epoch + 1",
        "max(1, manifest.last_epoch)",
    ),
    Mutation(
        "all writers have one token",
        TAIL + "begin_term",
        "self.tag + self._runtime.token()[TAG_DIGITS:]",
        '"0123456789abcdef"',
    ),
    Mutation(
        "the generation does not rise",
        MANIFESTS + "prepare",
        "generation=witness.manifest.generation + 1",
        "generation=witness.manifest.generation",
    ),
    Mutation(
        "a commit forgets to add to the setsum",
        MANIFEST + "apply_fragments",
        "setsum=self.setsum + sum_setsums(fragments)",
        "setsum=self.setsum",
    ),
    Mutation(
        "an unanswered upload is taken for done",
        "wal3_core.storage.documents.immutable:write_immutable",
        "            cause = outcome.cause\n",
        "            return\n",
    ),
    Mutation(
        "a refused upload is taken for done where there is no object",
        "wal3_core.storage.documents.immutable:write_immutable",
        "if found == data:",
        "if found == data or found is None:",
    ),
    Mutation(
        "fragments are committed out of order",
        LOOP + "_commit",
        "list(takewhile(lambda flight: flight.pointer is not None, self.in_flight))",
        "[flight for flight in self.in_flight if flight.pointer is not None]",
    ),
    Mutation(
        "records of one append share an offset",
        "wal3_core.log.write.commit_results:_acknowledge_each",
        "offset += entry.columns.num_records",
        "offset += 1",
    ),
    Mutation(
        "a record's time follows the clock backwards",
        TAIL + "place",
        "max(self._clock.now_us(), before.timestamp_us)",
        "self._clock.now_us()",
    ),
    Mutation(
        "the store is not asked for its time",
        "wal3_core.log.write.log_clock:LogClock._plausible",
        "        if seen is None or",
        "        if seen is None:\n            return True\n        if",
    ),
    Mutation(
        "the clock is compared with the store's once only",
        "wal3_core.log.write.log_clock:LogClock._plausible",
        "return timestamp_us <= self._store_us(seen) + self._ahead_us",
        "return True",
    ),
    Mutation(
        "a fragment whose time is too far ahead is committed",
        "wal3_core.log.write.log_clock:LogClock._refusal",
        "if latest_us <= store_us + self._ahead_us:",
        "if latest_us <= store_us + self._ahead_us or found is not None:",
    ),
    Mutation(
        "memory of finished appends is not released",
        OUTCOMES + "_release",
        "self.bytes_released += sum(entry.columns.bytes_held for entry in entries)",
        "self.bytes_released += 0 * sum(entry.bytes_held for entry in entries)",
    ),
    Mutation(
        "a timer that has fired is not set again",
        LOOP + "_on_timer",
        "            self._timer = None\n",
        "",
    ),
    Mutation(
        "an ordered writer appends records behind a failed upload",
        HALT + "stop",
        "if self.ordered and self.failure is None:",
        "if self.ordered and self.failure is None and undetermined is not None:",
    ),
    Mutation(
        "an ordered writer appends records behind an unknown outcome",
        HALT + "stop",
        "if self.ordered and self.failure is None:",
        "if self.ordered and self.failure is None and undetermined is None:",
    ),
    Mutation(
        "an unknown outcome is taken for not durable when the writer is resumed",
        HALT + "resume",
        "if verdict is Durability.DURABLE and self.undetermined is not None:",
        "if verdict is Durability.UNKNOWN and self.undetermined is not None:",
    ),
    Mutation(
        "a condition is refused by the writer's own guess of the end",
        RESOLVER + "refuse_unmet",
        "and not self._flights and self._tail.seen_s >= self._queue.oldest.accepted_s",
        "",
    ),
    Mutation(
        "a condition is refused by a manifest loaded before the call",
        RESOLVER + "refuse_unmet",
        "and self._tail.seen_s >= self._queue.oldest.accepted_s",
        "",
    ),
    Mutation(
        "a condition is not checked again when new positions are taken",
        RESOLVER + "_head_is_unmet",
        "return not self._queue.oldest.may_land_at(self._tail.offset)",
        "return not self._queue.oldest.reseals and not self._queue.oldest.may_land_at(self._tail.offset)",
    ),
    Mutation(
        "an append refused for lack of memory is appended all the same",
        "wal3_core.log.write.batch:Admission.drop_withdrawn",
        "if entry.withdrawn:",
        "if entry.withdrawn and entry.admitted is None:",
    ),
    Mutation(
        "a cursor is moved without comparing its version",
        "wal3_core.storage.documents.document_store:DocumentStore.swap",
        "self._store.replace(path, data, etag)",
        "self._store.replace(path, data, self._store.get(path).etag)",
    ),
    Mutation(
        "a cursor that another process moved is reported as a store without an answer",
        "wal3_core.storage.documents.document_store:DocumentStore.swap",
        "if (None if found is None else found.etag) != etag:",
        "if found is None and etag is not None:",
    ),
    Mutation(
        "a delete removes the object and leaves no tombstone",
        "wal3_core.storage.documents.named_store:NamedStore.delete",
        "        for _ in range(_TRIES_MAX):\n",
        "        if self._documents.delete(path) is None:\n            return\n        for _ in range(_TRIES_MAX):\n",
    ),
    Mutation(
        "cursors are not read again before pruning",
        "wal3_core.log.collect.planner:Planner.kept_below",
        "policy, cursors = self._policy(), self._offsets()",
        'policy, cursors = self._policy(), {"none": first.position.offset}',
    ),
    Mutation(
        "a plan fails while consumers move their cursors",
        "wal3_core.log.collect.planner:Planner.plan",
        "        manifest = self._stores.manifests.load().manifest\n",
        "        for _ in range(3):\n"
        "            manifest = self._stores.manifests.load().manifest\n"
        "            before, cursors = cursors, self._offsets()\n"
        "            if before == cursors:\n"
        "                break\n"
        "        else:\n"
        "            raise AssertionError('cursors moved')\n",
    ),
    Mutation(
        "a garbage document without its mark is never finished",
        COLLECTOR + "resume_unmarked",
        "if meta.path not in listed.marked and self._resume(meta.path):",
        "if meta.path in listed.marked and self._resume(meta.path):",
    ),
    Mutation(
        "an announced collection is ignored when a cursor or pin is written",
        MANIFEST + "first_kept",
        "return self.first if self.announced is None else self.announced.first",
        "return self.first",
    ),
    Mutation(
        "a saved cursor is not compared with the manifest",
        "wal3_core.storage.documents.cursor_store:CursorStore._check_still_held",
        "if position.offset >= first.offset:",
        "if position.offset >= 0 * first.offset:",
    ),
    Mutation(
        "a fragment is collected although a cursor needs a record of it",
        "wal3_core.model.garbage:_Cutter.keep",
        "if pointer.limit.offset <= self._offset:",
        "if pointer.start.offset < self._offset:",
    ),
    Mutation(
        "the snapshot of the kept part is not written",
        PRUNER + "_prune_onto",
        "            self._stores.snapshots.write(parts[path], self._options.retry)\n",
        "",
    ),
    Mutation(
        "garbage is deleted as soon as it is pruned",
        DELETER + "_wait_s",
        "return max(0.0, self._options.interval_s -",
        "return 0.0 * max(0.0, self._options.interval_s -",
    ),
    Mutation(
        "complete pins are ignored before deleting",
        "wal3_core.log.collect.references:_pinned",
        "pins = stores.pins.list().values()",
        "pins = [pin for pin in stores.pins.list().values() if not pin.complete]",
    ),
    Mutation(
        "the fence is not moved before orphans are deleted",
        PRUNER + "_mark_orphans",
        "move_fence(manifest) if",
        "manifest if",
    ),
    Mutation(
        "a snapshot is deleted before the objects below it",
        DELETER + "_delete_tree",
        "        left = going.num_left\n",
        "        left = going.num_left\n        self._stores.objects.delete(pointer.path)\n",
    ),
    Mutation(
        "a cursor saved too late stays below the log's beginning",
        "wal3_core.storage.documents.cursor_store:CursorStore._check_still_held",
        "self._put(name, put_back, saved)",
        "str(put_back)",
    ),
    Mutation(
        "a collector marks its document though its CAS was refused",
        PRUNER + "prune",
        "                self._prune_onto(base, announcement, seen, uploaded)\n",
        "                self._prune_onto(base, announcement, seen, uploaded)\n"
        "                return self._mark(path, seen)\n",
    ),
    Mutation(
        "the interval is measured by the collector's own clock",
        "wal3_core.log.log_stores:LogStores.store_now_us",
        "return store_now_us(self.objects, self.runtime)",
        "return self.runtime.now_us()",
    ),
    Mutation(
        "an orphan is taken for the committed fragment of its number",
        "wal3_core.log.collect.references:References._leads_to",
        "return pointer.path == path",
        "return True",
    ),
    Mutation(
        "a refused seal is taken for done",
        "wal3_core.log.maintain.sealer:_Sealing.install",
        "if isinstance(self._manifests.install(base.manifest.apply_seal(wanted), base), Installed):",
        "if self._manifests.install(base.manifest.apply_seal(wanted), base) != Installed:",
    ),
    Mutation(
        "the copy's manifest is written first",
        COPYING + "_copy",
        "            num_fragments = self._copy_fragments(plan.manifest, claim)\n"
        "            pointers = claim.write_snapshots(plan.manifest.pointers, self._load)\n",
        "            pointers = claim.write_snapshots(plan.manifest.pointers, self._load)\n"
        "            claim.finish(self._made(plan.manifest, pointers, self._policy(), claim))\n"
        "            num_fragments = self._copy_fragments(plan.manifest, claim)\n",
    ),
    Mutation(
        "copied fragments are not verified",
        COPYING + "_checked",
        "return read_checked(store, pointer, expanded_bytes_max=self._expanded_bytes_max)[0]",
        'return store.read(pointer.path) or b""',
    ),
    Mutation(
        "compacted snapshots are used before they are durable",
        "wal3_core.log.maintain.snapshot_compactor:SnapshotCompactor._step",
        "self._upload(repacked.written)",
        "str(repacked.written)",
    ),
    Mutation(
        "snapshot compaction loses a fragment",
        "wal3_core.model.repack:_Packer.nodes",
        "pointers += self._load(sibling).pointers",
        "pointers += self._load(sibling).pointers[1:]",
    ),
    Mutation(
        "no vacancy replaces the manifest of a destroyed log",
        DESTROYING + "run",
        "        deleted = int(self._vacate(lives, also_pinned=also_pinned))\n",
        "        deleted = 1\n",
    ),
    Mutation(
        "a reader never loads the manifest again",
        "wal3_core.log.read.reader:LogReader.manifest",
        "known = self._manifests.load(self._known)",
        "known = self._known or self._manifests.load(self._known)",
    ),
    Mutation(
        "a prefetched snapshot is taken for another one",
        "wal3_core.log.read.walk:Walk._loaded",
        "self._loading.pop(pointer.path, None)",
        "self._loading.popitem()[1] if self._loading else None",
    ),
    Mutation(
        "the log's id is not compared on load",
        MANIFESTS + "_checked",
        "if found.manifest.log_id != log_id:",
        "if not log_id:",
    ),
    Mutation(
        "a log is created at a destroyed name as if the name were new",
        MANIFESTS + "initialize",
        "self.begin(initial, seen)",
        "self.swap(initial, None)",
    ),
    Mutation(
        "a writer continues in a later log of the name",
        LOOP + "_recover",
        "until_answered(self._manifests.load,",
        "until_answered(type(self._manifests)(self._manifests._store, self._runtime).load,",
    ),
    Mutation(
        "a cursor store continues in a later log of the name",
        "wal3_core.storage.documents.cursor_store:CursorStore._manifest",
        "known = self._manifests.load(self._known)",
        "known = type(self._manifests)(self._manifests._store, self._runtime).load()",
    ),
    Mutation(
        "a copy is completed over another copy's claim",
        CLAIM + "Claim.finish",
        "self._manifests.begin(manifest, self._claimed)",
        "self._manifests.swap(manifest, self._manifests.look())",
    ),
    Mutation(
        "a log is deleted before its name is vacant",
        DESTROYING + "run",
        "        deleted = int(self._vacate",
        "        delete_remains(self._root, lives, self._runtime, self._retry)\n        deleted = int(self._vacate",
    ),
    Mutation(
        "the destroyed log's manifest is deleted",
        DESTROYING + "_vacate",
        "                if self._manifests.swap(vacancy, seen) is not None:\n",
        '                if self._root.delete("manifest/MANIFEST.json") is None and vacancy:\n',
    ),
    Mutation(
        "fragments are read in the order they arrive",
        "wal3_core.runtime.outcome:map_ahead",
        "            yield runtime.wait(waiting.popleft())\n    while",
        "            yield runtime.wait(waiting.pop())\n    while",
    ),
    *MARKING_MUTANTS,
)
