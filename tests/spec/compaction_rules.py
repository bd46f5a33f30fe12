"""What must hold of every version of a compacted log's manifest, checked against a list of all that was appended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.world import ClockStore
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import MANIFEST, life_folder
from wal3_core.format.policy import Policy
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import Pointer, Snapshot
from wal3_core.format.vacancy import manifest_or_vacancy
from wal3_core.runtime import US_PER_S
from wal3_core.store.object_store import Buffer, PutOutcome


@dataclass
class WatchedStore(ClockStore):
    """A store that shows every version of the manifest of one log as it is applied."""

    log: str = "a"
    show: Callable[[Manifest], None] = lambda _manifest: None
    # Of the first rule that was broken: whatever the process that wrote the manifest makes of its error.
    broken: list[AssertionError] = field(default_factory=list)

    def _changed(self, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        before = self.inner.read(path) if path == f"{self.log}/{MANIFEST}" else None
        outcome = super()._changed(path, apply)
        after = self.inner.read(path) if path == f"{self.log}/{MANIFEST}" else None
        if after is not None and after != before:
            self._judge(after)
        return outcome

    def _judge(self, data: Buffer) -> None:
        entry = manifest_or_vacancy(bytes(data), what=MANIFEST)
        if isinstance(entry, Manifest):
            try:
                self.show(entry)
            except AssertionError as error:
                self.broken.append(error)
                raise


@dataclass
class Cleaned:
    """A pass left one record of each key below ``limit``, at the store's time ``at_us``."""

    limit: int
    at_us: int


@dataclass
class Rules:
    """One log: what was appended, what its cursors and pins were promised, and its newest manifest."""

    store: WatchedStore
    appended: dict[int, Record] = field(default_factory=dict)
    held: dict[int, Record] = field(default_factory=dict)
    manifest: Manifest | None = None
    policy: Policy = field(default_factory=Policy)
    cleaned: list[Cleaned] = field(default_factory=list)
    # By cursor, the offsets that it was promised: those it could read at its creation, from its position on.
    promised: dict[str, set[int]] = field(default_factory=dict)
    passes: int = 0
    _records: dict[str, tuple[Record, ...]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.store.show = self.installed

    # ------------------------------------------------------------------ what is held

    def installed(self, after: Manifest) -> None:
        """Check a version of the manifest against the one before it."""
        with self._lock:
            pointers = list(self._fragments(after, after.pointers))
            now = {record.offset: record for pointer in pointers for record in self._read(after, pointer)}
            total = sum((pointer.setsum for pointer in pointers), start=EMPTY)
            assert after.setsum == after.pruned + total, "the setsums do not balance"
            assert len(now) == after.num_records == sum(pointer.num_records for pointer in pointers)
            first = after.first.position.offset
            fresh = {offset: record for offset, record in now.items() if offset not in self.held}
            known = 0 if self.manifest is None else self.manifest.next.position.offset
            assert all(offset >= known for offset in fresh), f"records came back: {sorted(fresh)}"
            assert all(self.held[offset] == now[offset] for offset in now.keys() & self.held), "a record has changed"
            self.appended |= fresh
            gone = {offset for offset in self.held.keys() - now.keys() if offset >= first}
            if self.manifest is not None:
                self._check_gone(self.manifest, after, gone, now)
            for name, promised in self.promised.items():
                assert promised <= now.keys(), f"cursor {name} lost {sorted(promised - now.keys())}"
            self.held, self.manifest = now, after
            self._check_fold(first)

    def _fragments(self, manifest: Manifest, pointers: Sequence[Pointer]) -> Iterator[FragmentPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer):
                yield pointer
                continue
            data = self.store.inner.read(self._path(manifest, pointer.path))
            assert data is not None, f"the manifest leads to {pointer.path}, which is missing"
            yield from self._fragments(manifest, Snapshot.from_bytes(data, pointer).pointers)

    def _path(self, manifest: Manifest, path: str) -> str:
        return f"{self.store.log}/{life_folder(manifest.log_id)}{path}"

    def _read(self, manifest: Manifest, pointer: FragmentPointer) -> tuple[Record, ...]:
        path = self._path(manifest, pointer.path)
        assert self.store.inner.head(path) is not None, f"the manifest leads to {pointer.path}, which is missing"
        if path not in self._records:
            data = self.store.inner.read(path)
            assert data is not None
            decoded = parquet.decode(data, pointer, expanded_bytes_max=2**30)
            self._records[path] = tuple(parquet.records_of(decoded.table))
        return self._records[path]

    # ------------------------------------------------------------------ what may be dropped

    def _check_gone(self, before: Manifest, after: Manifest, gone: set[int], now: Mapping[int, Record]) -> None:
        installed = after.compaction.passes - before.compaction.passes
        assert installed in {0, 1}
        if not installed:
            assert not gone, f"dropped by no pass: {sorted(gone)}"
            return
        self.passes += 1
        assert before.compacting is not None, "installed without an announcement"
        limit = before.compacting.limit
        assert self.policy.compacts, "compacted against the policy"
        for offset in gone:
            record = self.held[offset]
            assert record.key is not None, f"a record without a key was dropped: {offset}"
            assert offset < limit, f"dropped at {offset}, at or above the bound {limit}"
            newer = [o for o, r in self.held.items() if limit > o > offset and r.key == record.key]
            if not newer:
                assert record.body is None, f"the newest value of {record.key!r} was dropped, at {offset}"
                self._check_expired(record, now)
        self._check_clean(limit, now)
        self._check_lag(limit)
        if limit > max((each.limit for each in self.cleaned), default=0):
            self.cleaned.append(Cleaned(limit, self.store.now_us))

    def _check_expired(self, tombstone: Record, now: Mapping[int, Record]) -> None:
        retention_us = self.policy.compaction_limits.delete_retention_s * US_PER_S
        due = [each for each in self.cleaned if each.limit > tombstone.offset]
        assert due, f"tombstone {tombstone.offset} went with the first pass above it"
        waited_us = self.store.now_us - due[0].at_us
        assert waited_us >= retention_us, f"tombstone {tombstone.offset} went after {waited_us} us"
        older = [o for o, r in now.items() if o < tombstone.offset and r.key == tombstone.key]
        assert not older, f"tombstone {tombstone.offset} went, and {older} of its key are left"

    def _check_clean(self, limit: int, now: Mapping[int, Record]) -> None:
        keys = [record.key for offset, record in now.items() if offset < limit and record.key is not None]
        assert len(keys) == len(set(keys)), "a pass left two records of a key"

    def _check_lag(self, limit: int) -> None:
        lag_us = self.policy.compaction_limits.min_compaction_lag_s * US_PER_S
        young = [o for o, r in self.held.items() if o < limit and r.timestamp_us > self.store.now_us - lag_us]
        assert not young, f"compacted up to {limit}, and {young} are too young"

    def _check_fold(self, first: int) -> None:
        """The newest record of each key decides: it is there, or it was a tombstone and nothing is there."""
        wanted, found = _newest(self.appended, first), _newest(self.held, first)
        for key, record in wanted.items():
            present = found.pop(key, None)
            assert present == record or (present is None and record.body is None), f"{key!r}: {present}, not {record}"
        assert not found, f"keys came back: {found}"
        plain = {o for o, r in self.appended.items() if r.key is None and o >= first}
        assert plain <= self.held.keys(), "a record without a key was dropped"

    # ------------------------------------------------------------------ promises

    def promise(self, name: str, position: LogPosition) -> None:
        """Note what a cursor that was put there can read from now on."""
        with self._lock:
            self.promised[name] = {offset for offset in self.held if offset >= position.offset}


def _newest(records: Mapping[int, Record], first: int) -> dict[bytes, Record]:
    newest: dict[bytes, Record] = {}
    for offset in sorted(records):
        key = records[offset].key
        if key is not None and offset >= first:
            newest[key] = records[offset]
    return newest
