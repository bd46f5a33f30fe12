"""Finds the fragments that hold records of some keys, and reads their keys, and then their rows where there are any.

A snapshot's key roll-up says which of its fragments can hold a key at all; a fragment's key columns say which records
it has. Of a large fragment that is arranged by key only the row groups with the keys are read. All of this is read
once, and shared by all that the process has open of the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from wal3_core.errors import CorruptError, GarbageCollectedError, MissingError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import Hashes, hash_keys
from wal3_core.format.key_rollup import FragmentKeys, KeyRollup
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet import Arrangement, unreadable
from wal3_core.format.position import ReadStart
from wal3_core.format.record import Record
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.following import Following, Source, Waiting
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import Loader, Reloading, Walk, check_whole, may_lack, offset_of
from wal3_core.options import Limits
from wal3_core.runtime import Runtime, each_ahead
from wal3_core.store.object_store import ObjectStore, canonical_url, log_store, object_url, share_of
from wal3_core.views.keyed.reads import KeyedOptions, KeyIndex, KeyMatch, OffsetRange, shared_reads

# Fragments in a row that have records of the keys, from which on the next one is likely to have some, too.
_STREAK_MIN = 4
# Fragments looked up ahead: mostly a request or two for some kilobytes of each, at most all of these bytes.
_AHEAD_MAX = 8
_AHEAD_BYTES_MAX = 2**26
_WHOLE_BYTES_MAX = 2**22


@dataclass(frozen=True, slots=True)
class Hit:
    """A fragment that was looked up for some keys. ``index`` has all of its records of these, and may have others.

    The rows to read are those of the row groups with these ``numbers``, if it is arranged by key, else all. ``table``
    has them if they were read already.
    """

    pointer: FragmentPointer
    index: KeyIndex
    numbers: range | None = None
    table: pa.Table | None = None


class _Lookahead:
    """How far ahead a read looks, by the fragments that it came to last; ``prefetch`` large ones are read whole.

    While each has records of the keys, and their rows are ``wanted``, the next one is read whole at once: its keys are
    in what is read, so that asking for them first would take requests and time for nothing. Of a fragment that is
    arranged by key, a part is enough.
    """

    def __init__(self, prefetch: int, *, wanted: bool) -> None:
        self._prefetch = max(1, prefetch)
        self._wanted = wanted
        self._length = 0
        self._bytes_max = 0
        self._ahead = self._prefetch

    @property
    def ahead(self) -> int:
        """How many fragments to look up ahead: more of them each time, but few large ones that are read whole."""
        if self._length < _STREAK_MIN:
            return self._ahead
        return max(self._prefetch, min(self._ahead, _WHOLE_BYTES_MAX // max(1, self._bytes_max)))

    def add(self, hit: Hit, *, held: bool) -> None:
        """Note which fragment the read came to, and whether it has records of the keys."""
        most = min(_AHEAD_MAX, _AHEAD_BYTES_MAX // max(1, hit.pointer.num_bytes))
        self._ahead = max(self._prefetch, min(most, self._ahead + 1))
        if not self._wanted:
            return
        self._length = self._length + 1 if held and hit.numbers is None else 0
        self._bytes_max = max(self._bytes_max, hit.pointer.num_bytes) if self._length else 0

    def goes_on_with(self, pointer: FragmentPointer) -> bool:
        """Whether a fragment is likely to have records of the keys, and to be none that is arranged by key."""
        return self._length >= _STREAK_MIN and pointer.num_bytes <= 2 * self._bytes_max


T = TypeVar("T")

# A file up to this size takes one request, whether its keys are read or all of it.
WHOLE_BYTES_MAX = 2**16


class KeyReader:
    """Reads one life of a log by key. Safe to share between threads."""

    def __init__(self, store: ObjectStore, log: str, options: KeyedOptions, runtime: Runtime) -> None:
        self.options = options.reader
        self.runtime = runtime
        self.reader = LogReader.open(store, log, options=options.reader, runtime=runtime)
        self.known = self.reader.manifest()
        self.stores = LogStores(
            store,
            log,
            runtime=runtime,
            retry=options.reader.retry,
            snapshots_loaded_max=options.reader.snapshots_loaded_max,
            log_id=self.known.log_id,
        )
        self.share = share_of(self.stores.objects)
        self.shared = shared_reads(runtime, canonical_url(log_store(store, log).url), self.known.log_id, options)
        plain = replace(options.reader, verify=False)
        self._again = LogReader(store, log, options=plain, runtime=runtime, log_id=self.known.log_id)
        self._columns = KeyColumns(self.stores.objects, options.reader)

    def manifest(self) -> Manifest:
        """Load the newest manifest: one GET, cheap when nothing has changed."""
        self.known = self.reader.manifest()
        return self.known

    def steady(self, offsets: OffsetRange, work: Callable[[Manifest, int, int], T]) -> T:
        """Run ``work(manifest, start, limit)`` on the newest manifest, with the range cut to what that one holds.

        Run it again on a newer one, to its end, if compaction dropped records meanwhile: the newer record of a key, for
        which they were dropped, may lie behind the end of the manifest before.
        """
        for _ in range(self.options.reloads_max):
            manifest = self.manifest()
            held = offsets.within(manifest)
            with contextlib.suppress(GarbageCollectedError):
                return work(manifest, *held)
        manifest = self.manifest()
        return work(manifest, *offsets.within(manifest))

    def hits(self, match: KeyMatch, start: ReadStart, limit: int, manifest: Manifest) -> Iterator[tuple[Hit, int]]:
        """Go through the fragments that have records of the keys, in order; each with the offset to read it from.

        A read that lacks records that the manifest had, since they were compacted away, raises GarbageCollectedError.
        """
        if limit <= (offset_of(start) or 0):
            # Also one that begins where the log does not.
            return iter(())
        steps = self._reloading(match, manifest, exact=True).steps(
            manifest, start, Limits(offset=limit), partial(self.indexed, match), lambda hit: hit.pointer
        )
        return ((hit, offset_of(begin) or 0) for hit, begin in steps)

    def hits_with_rows(
        self,
        match: KeyMatch,
        start: ReadStart,
        limit: int,
        manifest: Manifest,
        *,
        chosen: Callable[[Iterator[Hit]], Iterator[Hit]] | None = None,
        exact: bool = True,
    ) -> Iterator[tuple[Hit, pa.Table, int]]:
        """Go through fragments as ``hits`` does, and read all, or those that ``chosen`` leaves, ahead of the caller.

        What is missing is looked up in a newer manifest. Unless ``exact``, records that it lacks are left out.
        """

        def steps(walk: Walk) -> Iterator[tuple[Hit, pa.Table]]:
            count = max(1, self.options.prefetch_fragments)
            hits = self.indexed(match, walk, rows=chosen is None)
            return each_ahead(hits if chosen is None else chosen(hits), self.begin_rows, lambda: count)

        reloading = self._reloading(match, manifest, exact=exact)
        limits = Limits(offset=limit)
        for (hit, table), begin in reloading.steps(manifest, start, limits, steps, lambda step: step[0].pointer):
            yield hit, table, offset_of(begin) or 0

    def _reloading(self, match: KeyMatch, manifest: Manifest, *, exact: bool) -> Reloading:
        source = _MatchingSource(self, match, manifest if exact else None)
        return Reloading(
            load=source.manifest,
            walk=source.walk,
            url=self.stores.url,
            log_id=manifest.log_id,
            reloads_max=self.options.reloads_max,
            exact=exact,
        )

    def indexed(self, match: KeyMatch, walk: Walk, *, rows: bool = False) -> Iterator[Hit]:
        """Read fragments' keys, a few ahead, and yield those that have any of the keys; ``rows``: to be read next."""
        lookahead = _Lookahead(self.options.prefetch_fragments, wanted=rows)

        def begin(pointer: FragmentPointer) -> Callable[[], Hit]:
            whole = lookahead.goes_on_with(pointer) and self.shared.keys.get(pointer.path) is None
            return self._begin_whole(pointer) if whole else self.begin_hit(match, pointer)

        for _, hit in each_ahead(walk, begin, lambda: lookahead.ahead, lambda: walk.ready):
            held = hit.index.has(match)
            lookahead.add(hit, held=held)
            if held:
                yield hit

    def known_hit(self, match: KeyMatch, pointer: FragmentPointer) -> Hit | None:
        """Look a fragment up in memory alone."""
        known = self.shared.keys.get(pointer.path)
        if isinstance(known, Arrangement):
            numbers = wanted(known, match)
            part = self.shared.keys.get((pointer.path, numbers)) if numbers else KeyIndex.EMPTY
            return Hit(pointer, part, numbers) if isinstance(part, KeyIndex) else None
        return None if known is None else Hit(pointer, known)

    def begin_hit(self, match: KeyMatch, pointer: FragmentPointer) -> Callable[[], Hit]:
        """Begin to look a fragment up; return how to wait for that. One request of a small one, else two or three."""
        known = self.shared.keys.get(pointer.path)
        if isinstance(known, Arrangement):
            return self._begin_part(match, pointer, known)
        wait = self.shared.keys.begin(pointer.path, partial(self._load_keys, match, pointer), self.share)

        def found() -> Hit:
            keys = wait()
            return Hit(pointer, keys) if isinstance(keys, KeyIndex) else self._begin_part(match, pointer, keys)()

        return found

    def _begin_part(self, match: KeyMatch, pointer: FragmentPointer, arrangement: Arrangement) -> Callable[[], Hit]:
        numbers = wanted(arrangement, match)
        if not numbers:
            return partial(Hit, pointer, KeyIndex.EMPTY, numbers)
        load = partial(self._load_part, pointer, arrangement, numbers)
        wait = self.shared.keys.begin((pointer.path, numbers), load, self.share)

        def found() -> Hit:
            index = wait()
            assert isinstance(index, KeyIndex)
            return Hit(pointer, index, numbers)

        return found

    def _begin_whole(self, pointer: FragmentPointer) -> Callable[[], Hit]:
        wait = self.shared.rows.begin(pointer.path, partial(self.load_rows, pointer), self.share)

        def found() -> Hit:
            table = wait()
            index = self._index(table)
            self.shared.keys.keep(pointer.path, index)
            return Hit(pointer, index, table=table)

        return found

    def _load_keys(self, match: KeyMatch, pointer: FragmentPointer) -> KeyIndex | Arrangement:
        """Read a fragment's keys, or how it is arranged by key; then also its records of the keys wanted."""
        if pointer.num_bytes <= WHOLE_BYTES_MAX:
            table = self.load_rows(pointer)
            self.shared.rows.keep(pointer.path, table)
            return self._index(table)
        found = self._columns.read_or_arrangement(pointer)
        if not isinstance(found, Arrangement):
            return self._index(found)
        numbers = wanted(found, match)
        self.shared.keys.keep((pointer.path, numbers), self._load_part(pointer, found, numbers))
        return found

    def _load_part(self, pointer: FragmentPointer, arrangement: Arrangement, numbers: range) -> KeyIndex:
        if not numbers:
            return KeyIndex.EMPTY
        rows = self.shared.rows.get((pointer.path, numbers))
        if rows is None:
            rows = self._load_groups(pointer, arrangement, numbers)
            self.shared.rows.keep((pointer.path, numbers), rows)
        return self._index(rows)

    def _index(self, table: pa.Table) -> KeyIndex:
        index = KeyIndex.of(table)
        if len(index.strays):
            self.shared.strays.add(self.stores.url, index.strays)
        return index

    def _load_groups(self, pointer: FragmentPointer, arrangement: Arrangement, numbers: range) -> pa.Table:
        if len(numbers) == len(arrangement.groups):
            return self.load_rows(pointer)
        try:
            return self._columns.groups(pointer, arrangement, numbers)
        except MissingError:
            raise
        except CorruptError:
            # Perhaps not these are damaged, but what was read of the footer then: no checksum covers where they lie.
            again = self._columns.read_or_arrangement(pointer)
            if not isinstance(again, Arrangement) or again == arrangement or again.groups != arrangement.groups:
                raise
        self.shared.keys.keep(pointer.path, again)
        return self._columns.groups(pointer, again, numbers)

    def begin_rows(self, hit: Hit) -> Callable[[], pa.Table]:
        """Begin to read the rows of a fragment that was looked up; return how to wait for them."""
        pointer, table = hit.pointer, hit.table
        if table is not None:
            return lambda: table
        if hit.numbers is None:
            return self.shared.rows.begin(pointer.path, partial(self.load_rows, pointer), self.share)
        load = partial(self._load_rows_of, hit)
        return self.shared.rows.begin((pointer.path, hit.numbers), load, self.share)

    def _load_rows_of(self, hit: Hit) -> pa.Table:
        """Read row groups again: what was read of them was dropped from memory, and so may be where they lie."""
        assert hit.numbers is not None
        known = self.shared.keys.get(hit.pointer.path)
        if not isinstance(known, Arrangement):
            known = self._columns.read_or_arrangement(hit.pointer)
            assert isinstance(known, Arrangement), "expected a fragment that stays as it is"
            self.shared.keys.keep(hit.pointer.path, known)
        return self._load_groups(hit.pointer, known, hit.numbers)

    def load_rows(self, pointer: FragmentPointer) -> pa.Table:
        """Read a fragment: one request. Its setsum, which takes most of the time, is verified once per process.

        Later reads check page CRCs only, and ``rows`` the offsets and keys of what is given.
        """
        if self.shared.verified.get(pointer.path):
            return self._again.fetch(pointer).table
        table = self.reader.fetch(pointer).table
        if self.options.verify:
            self.shared.verified.keep(pointer.path, value=True)
        return table

    def rows(self, hit: Hit, table: pa.Table, match: KeyMatch, start: int, limit: int) -> pa.Table:
        """Return those of a fragment's rows that are records of the keys in [start, limit); CorruptError if not all."""
        wanted = hit.index.offsets_of(match, start, limit)
        places = np.searchsorted(table["offset"].to_numpy(), wanted)
        found = table.take(pa.array(places[places < len(table)]))
        right = np.array_equal(found["offset"].to_numpy(), wanted)
        if not right or not all(match.fits(key) for key in found["key"].to_pylist()):
            what = hit.pointer.named(object_url(self.stores.objects, hit.pointer.path))
            raise unreadable(what, "expected the keys that its key columns had when they were read, found others")
        return found

    def rollup(self, pointer: SnapshotPointer) -> KeyRollup:
        """Load the key roll-up of a snapshot of depth 1; one of no fragments when there is none."""
        missing = (pointer.path, int(self.runtime.monotonic_s() // MISSING_S))
        if (known := self.shared.rollups.get(pointer.path) or self.shared.rollups.get(missing)) is None:
            known = self.stores.key_rollups.load(pointer) or NO_ROLLUP
            self.shared.rollups.keep(missing if known is NO_ROLLUP else pointer.path, known)
        return known


NO_ROLLUP = KeyRollup(())
# Seconds after which a key roll-up that was missing, which a pass may have written, is looked for again.
MISSING_S = 60.0


@dataclass(frozen=True, slots=True)
class _MatchingSource:
    """A log of which only the fragments that may hold some keys are walked.

    With ``began``, a read gives what that manifest has, or raises.
    """

    keys: KeyReader
    match: KeyMatch
    began: Manifest | None

    def manifest(self) -> Manifest:
        return self.keys.manifest()

    def walk(self, manifest: Manifest, start: ReadStart, limits: Limits) -> Walk:
        if self.began is not None and may_lack(manifest, self.began):
            # A fragment that lost all records of the keys looks like one that never had any.
            for pointer in self._walk(manifest, start, limits, self.keys.stores.snapshots.load):
                check_whole(self.keys.stores.url, pointer)
        return self._walk(manifest, start, limits, partial(load_matching, self.keys, self.match))

    def _walk(
        self, manifest: Manifest, start: ReadStart, limits: Limits, load: Callable[[SnapshotPointer], Snapshot]
    ) -> Walk:
        loader = Loader(self.keys.runtime, load, self.keys.options.prefetch_snapshots, self.keys.share)
        return Walk(manifest.pointers, start, limits, loader=loader)


def load_matching(keys: KeyReader, match: KeyMatch, pointer: SnapshotPointer) -> Snapshot:
    """Load a snapshot, without those of its fragments that certainly hold none of the keys."""
    snapshot = keys.stores.snapshots.load(pointer)
    fragments = [each for each in snapshot.pointers if isinstance(each, FragmentPointer)]
    if not fragments or match.key is None or all(keys.known_hit(match, each) for each in fragments):
        return snapshot
    known, hashes = keys_of(keys.rollup(pointer), fragments), key_hash(match.key)
    held = (each for each in fragments if each.path not in known or known[each.path].may_hold_any(hashes))
    return replace(snapshot, pointers=tuple(held))


def wanted(arrangement: Arrangement, match: KeyMatch) -> range:
    """Return the numbers of the row groups that hold the keys; all, if it is more than half of them."""
    numbers = arrangement.span(match.start, match.limit)
    every = range(len(arrangement.groups))
    return every if 2 * len(numbers) > len(every) else numbers


def key_hash(key: bytes) -> Hashes:
    """Hash one key."""
    return hash_keys(pa.array([key], pa.binary()))


def keys_of(rollup: KeyRollup, fragments: list[FragmentPointer]) -> dict[str, FragmentKeys]:
    """Return what a key roll-up knows of some fragments, by their paths."""
    known = {each.seq_no: each for each in rollup.fragments}
    found = ((pointer, known.get(pointer.seq_no)) for pointer in fragments)
    # A compacted fragment may have the number of another one.
    return {pointer.path: each for pointer, each in found if each is not None and each.is_of(pointer)}


def follow_keys(keys: KeyReader, match: KeyMatch, start: int | None, idle_s: float | None) -> Following:
    """Return a pass over the records of some keys that waits for more at the log's end."""
    shared, runtime, seen = keys.shared, keys.runtime, keys.known

    def newest() -> Manifest:
        """Return the newest manifest, or one that another follower has loaded since the last commit of this process.

        At most one GET in ``poll_s_min`` seconds for all followers, and one for each commit of this process; another
        if what was loaded is older than what this follower has seen, or than its start.
        """
        nonlocal seen
        version = runtime.await_topic(keys.stores.url, -1, 0.0)
        known = shared.newest
        if known is None or known[1] < version or runtime.monotonic_s() - known[2] >= keys.options.poll_s_min:
            begun_s = runtime.monotonic_s()
            shared.newest = known = shared.manifests.begin(version, keys.manifest, keys.share)(), version, begun_s
        manifest = known[0]
        if manifest.generation < seen.generation or manifest.next.position.offset < (start or 0):
            # Two loads may end in another order than they began, and another process may know a later start. Or else
            # the manifest was restored to an older version, which must not be waited out: records would be skipped.
            manifest = keys.manifest()
        seen = manifest
        return manifest

    def records(begin: ReadStart, manifest: Manifest) -> Iterator[Record]:
        """Go through a manifest's records of the keys; a follower comes to all that replaces a record."""
        limit = manifest.next.position.offset
        for hit, table, first in keys.hits_with_rows(match, begin, limit, manifest, exact=False):
            yield from parquet.records_of(keys.rows(hit, table, match, first, limit))

    waiting = Waiting(runtime, keys.options, idle_s=idle_s)
    source = Source(newest, records, keys.stores.snapshots.load)
    return Following(source, runtime, waiting, topic=keys.stores.url, log=keys.share.log.rstrip("/"), start=start)
