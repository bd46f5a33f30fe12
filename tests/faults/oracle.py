"""What must hold of every version of the manifest, and of every delete, when it is applied."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.faults.cursor_history import CursorHistory, version_of
from tests.faults.passes import Passes
from tests.faults.simulator import NEVER_S, START_US
from wal3_core import Message, Record
from wal3_core.format import parquet
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import (
    CURSOR_FOLDER,
    FRAGMENT_FOLDER,
    PIN_FOLDER,
    POLICY,
    SNAPSHOT_FOLDER,
    cursor_name,
    cursor_path,
    pass_path,
    pin_name,
    rolled_up_path,
)
from wal3_core.format.policy import Policy
from wal3_core.format.snapshot import Pointer, Snapshot, sum_setsums
from wal3_core.options import CLOCK_AHEAD_S_MAX
from wal3_core.store.object_store import ObjectStore

# Stands for the records before the beginning of a copy or a successor.
BEFORE = Message(b"before this log began")


@dataclass
class Shared:
    """Shared by all lives: what happened and how often, how long garbage waits, which processes make copies."""

    interval_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    copiers: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Oracle:
    """Reads the objects of one life of a log directly, without faults."""

    objects: ObjectStore
    shared: Shared = field(default_factory=Shared)
    log: str = ""
    # The life that this one is a copy of, or follows.
    origin: Oracle | None = None
    is_copy: bool = False
    # Whether a copy has got cursors.
    with_cursors: bool = False
    began_s: float = 0.0
    over_s: float = NEVER_S
    manifest: Manifest | None = None
    held: list[FragmentPointer] = field(default_factory=list)
    # Every record the log ever held, by offset from 1; ``num_inherited`` of them it had from the beginning.
    records: list[Message] = field(default_factory=list)
    num_inherited: int = 0
    # When which offset was dropped by a pass of key compaction; those of a copy before it began.
    dropped: dict[int, float] = field(default_factory=dict)
    passes: Passes = field(default_factory=Passes)
    begins: int = 1
    versions: int = 0
    # When the log came to end at which offset.
    ends: list[tuple[float, int]] = field(default_factory=list)
    # When which writer term was the newest.
    terms: list[tuple[float, int]] = field(default_factory=list)
    cursors: defaultdict[str, CursorHistory] = field(default_factory=lambda: defaultdict(CursorHistory))
    # The writers of the cursors that are relied on, and the paths held by the pins that are.
    relied_on: set[str] = field(default_factory=set)
    pins: dict[str, set[str]] = field(default_factory=dict)
    _referenced: set[str] = field(default_factory=set)
    _let_go_s: dict[str, float] = field(default_factory=dict)
    _snapshots: dict[str, Snapshot] = field(default_factory=dict)
    _found: dict[str, tuple[Record, ...]] = field(default_factory=dict)

    @property
    def seen(self) -> Counter[str]:
        """What happened, and how often."""
        return self.shared.seen

    def begin(self, manifest: Manifest) -> None:
        """Take over what the life inherits from the log that it copies or follows."""
        self.begins = manifest.first.position.offset
        self.records = [BEFORE] * (self.begins - 1)
        self.passes.begin(manifest)
        # A copy writes the policy before its manifest.
        policy = self.objects.read(POLICY)
        if policy is not None:
            self.passes.policies[:] = [(0.0, Policy.from_bytes(policy, what=POLICY))]
        for meta in self.objects.list_objects(CURSOR_FOLDER):
            data = self.objects.read(meta.path)
            assert data is not None
            self.cursors[cursor_name(meta.path)].landed[:] = [version_of(data, meta.path)]

    def landed(self, path: str, data: bytes, now_s: float) -> None:
        """Check an object as it is written."""
        if path == POLICY:
            self.passes.policies.append((now_s, Policy.from_bytes(data, what=path)))
        if path.startswith(CURSOR_FOLDER):
            cursor = version_of(data, path)
            assert self.manifest is None or cursor.log_id == self.manifest.log_id, f"{path} is of another log: {cursor}"
            mover = cursor.writer.partition(" ")[0]
            copied = mover in self.shared.copiers and self.over_s == NEVER_S
            assert not copied, f"{path} of a log was moved by a copy to it: {cursor}"
            self.cursors[cursor_name(path)].landed.append(cursor)

    def installed(self, after: Manifest, now_s: float) -> None:
        """Check a version of the manifest against the one before it."""
        before = self.manifest
        held = list(self._fragments(after.pointers))
        for pointer in held[-8:]:
            assert self.objects.head(pointer.path) is not None, f"{pointer.path} was linked before it was durable"
        limit_us = START_US + int((now_s + CLOCK_AHEAD_S_MAX) * 1e6) + 1
        assert after.next.position.timestamp_us <= limit_us, f"INV-29: its time is beyond the store's: {after.next}"
        if before is not None:
            self._check_step(before, after)
            if after.compaction == before.compaction:
                self._check_prefix(after, held)
            else:
                self._check_pass(before, after, held, now_s)
            self._count(before, after)
            if after.first != before.first:
                self._check_cursors(after.first.position.offset)
            self.passes.announced(before, after, now_s)
        self._note_records(held)
        self.ends.append((now_s, after.next.position.offset))
        self.terms.append((now_s, after.epochs[-1].epoch if after.epochs else 0))
        self.manifest, self.held = after, held
        self.versions += 1
        referenced = set(self._paths(after.pointers))
        self._let_go_s.update(dict.fromkeys(self._referenced - referenced, now_s))
        self._referenced = referenced

    def forgot(self, since_s: float) -> bool:
        """Whether so many writers have committed since that the manifest lists no term of a writer opened then."""
        newest = max((term for at_s, term in self.terms if at_s <= since_s), default=0)
        return self.manifest is not None and bool(self.manifest.epochs) and self.manifest.epochs[0].epoch > newest + 1

    def _count(self, before: Manifest, after: Manifest) -> None:
        """Count the steps and outcomes of collections."""
        if after.announced is not None and after.announced != before.announced:
            self.seen["announced" if before.announced is None else "overtaken"] += 1
        if after.announced is None and before.announced is not None:
            self.seen["withdrawn" if after.first == before.first else "pruned"] += 1
        self.seen["orphans marked"] += after.fence > before.fence
        self.seen["log sealed"] += after.seal != before.seal

    def _note_records(self, held: Sequence[FragmentPointer]) -> None:
        for pointer in held:
            if pointer.start.offset > len(self.records):
                found = {record.offset: record for record in self._records_of(pointer)}
                for offset in range(pointer.start.offset, pointer.limit.offset):
                    record = found.get(offset)
                    if record is None:
                        self.dropped[offset] = self.began_s
                    self.records.append(BEFORE if record is None else Message(record.body, record.key))

    def _records_of(self, pointer: FragmentPointer) -> tuple[Record, ...]:
        if pointer.path not in self._found:
            data = self.objects.read(pointer.path)
            assert data is not None, f"{pointer.path} was linked before it was durable"
            table = parquet.decode(data, pointer, expanded_bytes_max=2**30).table
            self._found[pointer.path] = tuple(parquet.records_of(table))
        return self._found[pointer.path]

    def messages(self, manifest: Manifest) -> list[Message]:
        """Return the records that a version of the manifest leads to."""
        pointers = self._fragments(manifest.pointers)
        return [Message(each.body, each.key) for pointer in pointers for each in self._records_of(pointer)]

    def _check_pass(self, before: Manifest, after: Manifest, held: Sequence[FragmentPointer], now_s: float) -> None:
        """Check what a pass of key compaction has installed."""
        held_before = {record.offset: record for pointer in self.held for record in self._records_of(pointer)}
        held_after = {record.offset: record for pointer in held for record in self._records_of(pointer)}
        assert after.pruned + sum_setsums(held) == before.pruned + sum_setsums(self.held), "INV-1"
        assert after.setsum == before.setsum, "INV-1"
        limit = self.passes.check(before, after, held_before, held_after, now_s)
        assert self.objects.head(pass_path(after.compaction.token)) is not None, "a pass was installed without a record"
        self._check_cursors(limit)
        self.dropped |= dict.fromkeys(held_before.keys() - held_after.keys(), now_s)
        self.seen["passes installed"] += 1
        self.seen["records superseded or expired"] += len(held_before) - len(held_after)

    def _check_cursors(self, first: int) -> None:
        for meta in self.objects.list_objects(CURSOR_FOLDER):
            data = self.objects.read(meta.path)
            assert data is not None
            cursor = version_of(data, meta.path)
            below = isinstance(cursor, Cursor) and cursor.position.offset < first
            assert not (below and cursor.writer in self.relied_on), f"{meta.path} was collected past: {cursor}"

    def relies_on(self, name: str, cursor: Cursor) -> None:
        """Record a cursor whose mover was promised that it holds: the log must hold its records."""
        self.relied_on.add(cursor.writer)
        data = self.objects.read(cursor_path(name))
        # Another mover may have moved it meanwhile.
        if data is not None and self.manifest is not None and version_of(data, name) == cursor:
            first = self.manifest.first.position.offset
            assert cursor.position.offset >= first, f"promised to hold, and collected up to {first}: {cursor}"

    def pinned(self, name: str, manifest: Manifest) -> None:
        """Record a pin whose creator was promised that it holds: all its objects must exist."""
        self.pins[name] = self.paths(manifest)
        for path in self.pins[name]:
            assert self.objects.head(path) is not None, f"pin {name} was promised to hold, and {path} is gone"

    def _check_step(self, before: Manifest, after: Manifest) -> None:
        assert after.generation == before.generation + 1, "INV-5"
        assert after.next.seq_no >= before.next.seq_no, "the log went backwards"
        assert after.next.position >= before.next.position, "INV-2"
        assert after.next.position.timestamp_us >= before.next.position.timestamp_us, "INV-2"
        assert after.first.seq_no >= before.first.seq_no, "collected records came back"
        assert after.fence >= before.fence, "INV-7"
        assert all(low.epoch < high.epoch for low, high in pairwise(after.epochs)), "INV-4"
        assert after.last_epoch >= before.last_epoch, "INV-4"
        if before.seal is not None:
            assert after.seal == before.seal, "INV-6"
            assert after.next == before.next, "INV-6: appended after the seal"

    def _check_prefix(self, after: Manifest, held: Sequence[FragmentPointer]) -> None:
        kept = [pointer for pointer in self.held if pointer.seq_no >= after.first.seq_no]
        gone = self.held[: len(self.held) - len(kept)]
        assert list(held[: len(kept)]) == kept, "what the log held has changed"
        assert self.manifest is not None
        assert after.pruned == self.manifest.pruned + sum_setsums(gone), (
            "INV-1: pruned is not the setsum of the dropped fragments"
        )
        assert after.setsum == self.manifest.setsum + sum_setsums(held[len(kept) :]), (
            "INV-1: setsum does not grow by that of the new fragments"
        )

    def deleted(self, path: str, now_s: float) -> None:
        """Check that a delete takes no object that the log, a pin or a slow reader needs."""
        assert path not in self._referenced, f"{path} was deleted, and the log refers to it"
        assert not path.startswith(CURSOR_FOLDER), f"{path} was deleted, and its name may be used again"
        # The pins of copies have names that are used once.
        used_once = path.startswith(PIN_FOLDER) and pin_name(path).startswith("copy-")
        assert used_once or not path.startswith(PIN_FOLDER), f"{path} was deleted, and its name may be used again"
        for name, pinned in self.pins.items():
            assert path not in pinned, f"{path} was deleted, and pin {name} refers to it"
        self.seen["objects of passes deleted"] += self.passes.deleted(path)
        snapshot = rolled_up_path(path)
        assert snapshot not in self._referenced, f"{path} was deleted, and the log refers to its snapshot"
        for name, pinned in self.pins.items():
            assert snapshot not in pinned, f"{path} was deleted, and pin {name} refers to its snapshot"
        if not path.startswith((FRAGMENT_FOLDER, SNAPSHOT_FOLDER)):
            return
        self.seen["objects deleted"] += 1
        # A drifting clock may measure the interval slightly short.
        let_go_s = self._let_go_s.get(path, -self.shared.interval_s)
        assert now_s - let_go_s >= self.shared.interval_s * 0.98, (
            f"{path} was deleted {now_s - let_go_s:.1f} s after it was let go"
        )

    def referenced(self) -> set[str]:
        """The path of every object that the newest manifest refers to."""
        return self._referenced

    def paths(self, manifest: Manifest) -> set[str]:
        """The path of every object that a manifest refers to."""
        return set(self._paths(manifest.pointers))

    def _paths(self, pointers: Sequence[Pointer]) -> Iterator[str]:
        for pointer in pointers:
            yield pointer.path
            if not isinstance(pointer, FragmentPointer):
                yield from self._paths(self._below(pointer))

    def _fragments(self, pointers: Sequence[Pointer]) -> Iterator[FragmentPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer):
                yield pointer
            else:
                yield from self._fragments(self._below(pointer))

    def _below(self, pointer: Pointer) -> Sequence[Pointer]:
        assert not isinstance(pointer, FragmentPointer)
        if pointer.path not in self._snapshots:
            data = self.objects.read(pointer.path)
            assert data is not None, f"{pointer.path} was linked before it was durable"
            self._snapshots[pointer.path] = Snapshot.from_bytes(data, pointer)
        return self._snapshots[pointer.path].pointers
