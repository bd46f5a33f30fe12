"""Which objects are still referred to: looked up one by one, so that a log need not be held in memory.

Objects of key compaction that belong to installed passes stay as long as the log, but for the lists of dropped records
if the log's policy has a ``receipt_retention_s``.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache, cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from wal3_core.errors import CollectionRefusedError, CorruptError, MissingError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import SNAPSHOT_FOLDER, fragment_seq_no, is_dropped_path, pass_object_token, rolled_up_path
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.runtime import US_PER_S
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.retrying import attempts, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wal3_core.format.garbage import Garbage
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.pass_record import PassRecord
    from wal3_core.format.position import FragmentSeqNo
    from wal3_core.format.snapshot import Pointer, Snapshot
    from wal3_core.log.log_stores import LogStores


# Seconds that a process which wrote a cursor too late has to correct it.
_DANGLING_S = 2.0


def every_path(pointers: Sequence[Pointer], load: Callable[[SnapshotPointer], Snapshot]) -> Iterator[str]:
    """Name all the objects that pointers lead to, in log order, each snapshot after what it holds.

    A missing snapshot is left out: what it held was deleted before it.
    """
    for pointer in pointers:
        if isinstance(pointer, SnapshotPointer):
            try:
                below = load(pointer).pointers
            except MissingError:
                continue
            yield from every_path(below, load)
        yield pointer.path


class References:
    """The objects that runs of pointers, each in log order, lead to; ``load`` keeps what it loaded for a while.

    With ``partly_deleted``, snapshots may be missing or unreadable; these lead to nothing.
    """

    def __init__(
        self,
        runs: Iterable[Sequence[Pointer]],
        load: Callable[[SnapshotPointer], Snapshot],
        *,
        partly_deleted: bool = False,
    ) -> None:
        self._runs = [run for run in runs if run]
        self._load = load
        self._partly_deleted = partly_deleted
        # Snapshots found missing or unreadable: they are loaded only once.
        self._gone: set[str] = set()
        self._snapshots = {pointer.path for run in self._runs for pointer in self._every_snapshot(run)}

    def retains(self, path: str) -> bool:
        """Tell whether an object is referred to, a key roll-up as its snapshot is; CorruptError for any other path.

        No pointer leads to an object of a pass.
        """
        if pass_object_token(path) is not None:
            return False
        path = rolled_up_path(path) or path
        if path.startswith(SNAPSHOT_FOLDER):
            return path in self._snapshots
        seq_no = fragment_seq_no(path)
        return any(self._leads_to(run, seq_no, path) for run in self._runs)

    def _below(self, pointer: SnapshotPointer) -> Sequence[Pointer]:
        if pointer.path in self._gone:
            return ()
        try:
            return self._load(pointer).pointers
        except CorruptError:
            if not self._partly_deleted:
                raise
            self._gone.add(pointer.path)
            return ()

    def _every_snapshot(self, pointers: Sequence[Pointer]) -> Iterator[SnapshotPointer]:
        for pointer in pointers:
            if isinstance(pointer, SnapshotPointer):
                yield pointer
                if pointer.depth > 1:
                    yield from self._every_snapshot(self._below(pointer))

    def _leads_to(self, pointers: Sequence[Pointer], seq_no: FragmentSeqNo, path: str) -> bool:
        at = bisect_right(pointers, seq_no, key=attrgetter("first_seq_no")) - 1
        if at < 0 or pointers[at].last_seq_no < seq_no:
            return False
        pointer = pointers[at]
        if isinstance(pointer, FragmentPointer):
            return pointer.path == path
        return self._leads_to(self._below(pointer), seq_no, path)


class PendingGarbage:
    """The objects that garbage documents name; ``pending`` is read only as far as needed."""

    def __init__(self, pending: Iterable[Garbage], load: Callable[[SnapshotPointer], Snapshot]) -> None:
        self._pending = iter(pending)
        self._load = load
        self._named: set[str] = set()
        self._references: list[References] = []

    def retains(self, path: str) -> bool:
        """Tell whether a document names the object, or leads to it."""
        paths = {path, rolled_up_path(path)}
        if paths & self._named or any_retains(self._references, path):
            return True
        for garbage in self._pending:
            self._named.update(garbage.orphans)
            # Replaced snapshots may contain each other, so they are not one run.
            runs = [garbage.dropped, *((pointer,) for pointer in garbage.replaced)]
            self._references.append(References(runs, self._load, partly_deleted=True))
            if paths & self._named or self._references[-1].retains(path):
                return True
        return False


class Retainer(Protocol):
    """What keeps objects from being deleted."""

    def retains(self, path: str) -> bool:
        """Tell whether it keeps the object at a path."""
        ...


def any_retains(every: Iterable[Retainer], path: str) -> bool:
    """Tell whether an object is referred to from anywhere."""
    return any(each.retains(path) for each in every)


def references_of(
    stores: LogStores, manifest: Manifest, retention_s: Callable[[], int | None] | None = None
) -> list[Retainer]:
    """Return what a manifest refers to, and the objects of the passes that it has."""
    passes = InstalledPasses(stores, manifest, retention_s or receipt_retention_s(stores))
    return [References([manifest.pointers], stores.snapshots.load), passes]


def read_references(stores: LogStores, retention_s: Callable[[], int | None] | None = None) -> list[Retainer]:
    """Read what the manifest and the pins refer to; CollectionRefusedError when a cursor or pin is bad."""
    manifest = stores.manifests.load().manifest
    try:
        _refuse_dangling(stores, manifest)
        pinned = _pinned(stores)
    except CorruptError as error:
        message = f"log {stores.url}: nothing is deleted while a cursor or pin cannot be read: {error}"
        raise CollectionRefusedError(message) from error
    return [*references_of(stores, manifest, retention_s), *pinned]


def _pinned(stores: LogStores) -> list[References]:
    pins = stores.pins.list().values()
    complete = [pin.manifest.pointers for pin in pins if pin.complete]
    # Its creator died, or has not checked the manifest yet: some of what it names may have been deleted before.
    unfinished = [pin.manifest.pointers for pin in pins if not pin.complete]
    return [
        References(complete, stores.snapshots.load),
        References(unfinished, stores.snapshots.load, partly_deleted=True),
    ]


def _refuse_dangling(stores: LogStores, manifest: Manifest) -> None:
    """Refuse while a cursor is below the log's first offset: its creation was not finished, or something is wrong."""
    first = manifest.first.position.offset
    below: dict[str, int] = {}
    # A cursor that was written too late is corrected at once by the process that wrote it.
    for _ in attempts(within(stores.retry, _DANGLING_S), stores.runtime):
        below = {name: offset for name, offset in stores.cursors.offsets().items() if offset < first}
        if not below:
            return
    message = (
        f"log {stores.url}: nothing is deleted while cursors lie below its first offset, {first}: {below}:"
        f" delete or move them"
    )
    raise CollectionRefusedError(message)


# Passes, the newest ones, that are searched for leftovers; older leftovers are never deleted.
_PASSES_MAX = 1024


def receipt_retention_s(stores: LogStores) -> Callable[[], int | None]:
    """Return how to find out for how long after what they list was deleted the lists of installed passes stay.

    None for as long as the log. The log's policy is read when it is first needed.
    """
    return cache(lambda: stores.policies.load().receipt_retention_s)


class InstalledPasses:
    """The passes that one version of a log has. What is not known counts as installed."""

    def __init__(self, stores: LogStores, manifest: Manifest, retention_s: Callable[[], int | None]) -> None:
        self._stores = stores
        self._retention_s = retention_s
        self._passes = PassStore(stores.manifests, stores.runtime, stores.retry)
        self._compaction = manifest.compaction
        self._known: dict[str, bool] = {}
        self._deleted_us: dict[str, int | None] = {}
        # Walked back only as far as needed: by number, the tokens of those found so far.
        self._walk = self._passes.back_from(manifest.compaction.token)
        self._tokens: dict[int, str] = {}

    def retains(self, path: str) -> bool:
        """Tell whether an object is of an installed pass, and is to stay; False for one that is not of any pass."""
        token = pass_object_token(path)
        if token is None:
            return False
        if token not in self._known:
            self._deleted_us[token] = self._passes.deleted_us(token)
            self._known[token] = self._is_installed(token)
        since_us = self._deleted_us[token]
        # The lists of an installed pass go once they have been kept for as long as the policy says.
        outlived = (
            is_dropped_path(path)
            and since_us is not None
            and self._kept_since_us is not None
            and since_us <= self._kept_since_us
        )
        return self._known[token] and not outlived

    @cached_property
    def _kept_since_us(self) -> int | None:
        retention_s = self._retention_s()
        return None if retention_s is None else self._stores.store_now_us() - retention_s * US_PER_S

    def _is_installed(self, token: str) -> bool:
        if token == self._compaction.token or self._deleted_us[token] is not None:
            return True
        try:
            return self._has(self._passes.load(token))
        except MissingError:
            # The record is written before the install, and goes with the lists.
            return False
        except CorruptError:
            # Its own record is damaged, or one that leads to those of its time.
            return True

    def _has(self, record: PassRecord) -> bool:
        passes, number = self._compaction.passes, record.number
        if number > passes:
            return False
        if passes - number >= _PASSES_MAX:
            return True
        while number not in self._tokens:
            found = next(self._walk, None)
            if found is None:
                return True
            self._tokens[found.number] = found.token
        return self._tokens[number] == record.token
