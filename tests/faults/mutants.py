"""Defects that the simulated worlds must find: each breaks one rule of the protocol."""

from __future__ import annotations

from tests.mutations import Mutation

PIPELINE = "wal3_core.log.pipeline:Pipeline."
COMMIT = "wal3_core.log.commit:"
MANIFEST = "wal3_core.model.manifest:Manifest."

MUTANTS = (
    Mutation(
        "acknowledged before the CAS",
        PIPELINE + "_commit",
        "result = self._committer.commit(base, ready[0].incarnation, pointers)",
        "result = Committed(base)",
    ),
    Mutation(
        "an unanswered CAS is taken for done",
        COMMIT + "Committer._commit_onto",
        "                unresolved = cause\n",
        "                return Committed(base)\n",
    ),
    Mutation(
        "an unanswered CAS is taken for failed",
        COMMIT + "Committer._commit_onto",
        "return Lost(unresolved) if unresolved else Failed(cause, failure)",
        "return Failed(cause, failure)",
    ),
    Mutation(
        "appended again after an unanswered CAS",
        COMMIT + "Committer._commit_onto",
        "return Lost(unresolved) if unresolved else Failed(cause, failure)",
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
        "the fence is not compared before a commit",
        COMMIT + "judge",
        "if manifest.fence != incarnation.fence:",
        "if manifest.fence < incarnation.fence:",
    ),
    Mutation(
        "the fence is not compared before a snapshot is used",
        "wal3_core.log.snapshotter:_Ready.applied_to",
        "if self.fence != manifest.fence:",
        "if self.fence > manifest.fence:",
    ),
    Mutation(
        "the snapshot's name does not cover the fence",
        "wal3_core.model.snapshot:Snapshot.to_bytes",
        '"fence": self.fence,',
        '"fence": 0,',
    ),
    Mutation(
        "a snapshot is used before it is durable",
        "wal3_core.log.snapshotter:Snapshotter._write",
        "self._snapshots.write(snapshot, self._options.retry)",
        "snapshot.pointer_to(snapshot.to_bytes())",
    ),
    Mutation(
        "a snapshot swallows one pointer too many",
        MANIFEST + "apply_snapshot",
        "*pointers[at + len(replaced) :])",
        "*pointers[at + len(replaced) + 1 :])",
    ),
    Mutation(
        "the seal is not looked at",
        COMMIT + "judge",
        "if manifest.seal is not None:",
        "if manifest.seal is None and manifest.generation == 0:",
    ),
    Mutation(
        "the epoch is not raised",
        PIPELINE + "_reincarnate",
        "manifest.last_epoch + 1",
        "max(1, manifest.last_epoch)",
    ),
    Mutation(
        "all writers have one token",
        PIPELINE + "_reincarnate",
        "self._runtime.token()",
        '"0123456789abcdef"',
    ),
    Mutation(
        "the generation does not rise",
        "wal3_core.storage.manifest_store:ManifestStore.install",
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
        "wal3_core.storage.immutable:write_immutable",
        "            cause = outcome.cause\n",
        "            return\n",
    ),
    Mutation(
        "a conflict is taken for one's own earlier success",
        "wal3_core.storage.immutable:write_immutable",
        "if found == data:",
        "if found == data or found is None:",
    ),
    Mutation(
        "fragments are committed out of order",
        PIPELINE + "_commit",
        "list(takewhile(lambda flight: flight.pointer is not None, self._flights))",
        "[flight for flight in self._flights if flight.pointer is not None]",
    ),
    Mutation(
        "records of one append share an offset",
        PIPELINE + "_acknowledge",
        "offset += len(entry.columns.bodies)",
        "offset += 1",
    ),
    Mutation(
        "the clock is believed",
        PIPELINE + "_seal",
        "max(self._runtime.now_us(), before.timestamp_us)",
        "self._runtime.now_us()",
    ),
    Mutation(
        "held bytes are not given back",
        PIPELINE + "_release",
        "self._bytes_released += sum(entry.bytes_held for entry in entries)",
        "self._bytes_released += 0 * sum(entry.bytes_held for entry in entries)",
    ),
    Mutation(
        "a timer that went off is believed to be set",
        PIPELINE + "_on_timer",
        "            self._timer = None\n",
        "",
    ),
    Mutation(
        "a cursor is moved whatever its version",
        "wal3_core.storage.cursor_store:CursorStore._put",
        "self._store.replace(path, data, witness.etag)",
        "self._store.replace(path, data, self._store.get(path).etag)",
    ),
    Mutation(
        "a cursor's conflict is taken for bad luck",
        "wal3_core.storage.cursor_store:CursorStore._put",
        "if present != (None if witness is None else witness.etag):",
        "if present is None and witness is not None:",
    ),
    Mutation(
        "a reader trusts the manifest it knows",
        "wal3_core.log.reader:LogReader.manifest",
        "known = self._manifests.load(self._known)",
        "known = self._known or self._manifests.load(self._known)",
    ),
    Mutation(
        "fragments are read in the order they arrive",
        "wal3_core.runtime:ahead",
        "            yield runtime.wait(waiting.popleft())\n    while",
        "            yield runtime.wait(waiting.pop())\n    while",
    ),
)
