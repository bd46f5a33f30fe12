"""Deletes what collections left behind, after looking up one by one what is still referred to.

Nothing is deleted until one interval after it was pruned, by the store's clock, and nothing that the newest
manifest or a pin refers to. Orphans are objects that nothing refers to: uploads of writers that died, what interrupted
maintenance left. Keeps INV-15 and INV-16. Source: docs/protocol/collection.md, "Collection".
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from typing import Protocol

from wal3_core.arguments import checked, function, instance_of, integer, optional, several
from wal3_core.errors import CollectionRefusedError, CorruptError, InvalidRequestError, MissingError, StoreDeniedError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.garbage import Garbage
from wal3_core.format.manifest import Manifest
from wal3_core.format.pass_record import PassRecord
from wal3_core.format.paths import (
    CLOCK,
    COMPACTION_FOLDER,
    DATA_FOLDERS,
    KEY_ROLLUP_FOLDER,
    SNAPSHOT_FOLDER,
    LogId,
    check_object_path,
    deleted_token,
    fragment_seq_no,
    given_garbage_path,
    is_dropped_path,
    is_snapshot_path,
    key_rollup_path,
    pass_object_token,
    rolled_up_path,
)
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.log.log_stores import LogStores
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.object_store import OPENING, ObjectMeta, ObjectStore, share_of
from wal3_core.store.retrying import attempts, within

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
    raise CollectionRefusedError(
        f"log {stores.url}: nothing is deleted while cursors lie below its first offset, {first}: {below}:"
        f" delete or move them"
    )


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


# ---------------------------------------------------------------------- deletion


class GarbageWork:
    """Work on the garbage of one life of a log."""

    @checked(**OPENING)
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: CollectorOptions | None = None,
        runtime: Runtime | None = None,
        log_id: LogId | None = None,
    ) -> None:
        self._options = options = options or CollectorOptions()
        self._stores = LogStores(
            store,
            log,
            runtime=runtime or shared_runtime(),
            retry=options.retry,
            snapshots_loaded_max=options.snapshots_loaded_max,
            log_id=log_id,
        )
        self.log = self._stores.log
        self._documents = self._stores.garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionReport:
    """What became of one garbage document: how many objects were deleted or are held by a pin, how long to wait.

    ``problems`` name snapshots that cannot be read, so that what to delete below them is unknown, and a document that
    was taken for pruned and is not. ``num_orphans_held`` are no orphans any more: the document does not wait for them.
    """

    path: str
    num_deleted: int = 0
    num_held: int = 0
    num_orphans_held: int = 0
    wait_s: float = 0.0
    problems: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all of it is gone, and the document with it."""
        return not (self.num_held or self.wait_s or self.problems)


@dataclass(frozen=True, slots=True)
class DueDocument:
    """A garbage document that is due, and its path, which does not change when a prune cuts again."""

    path: str
    garbage: Garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionPart:
    """Some of what a garbage document names: pointers, deleted with all below them, snapshots, and orphans."""

    dropped: tuple[Pointer, ...] = ()
    replaced: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()

    @classmethod
    def whole(cls, garbage: Garbage) -> DeletionPart:
        """Return all of it."""
        replaced = tuple(pointer.path for pointer in garbage.replaced)
        return cls(dropped=garbage.dropped, replaced=replaced, orphans=garbage.orphans)


class _Deletion:
    """One pass over a garbage document, and what came of it so far."""

    def __init__(self, references: Sequence[Retainer], progress: Callable[[int], None]) -> None:
        self.references, self.progress = references, progress
        self.num_deleted = self.num_held = 0
        # Whether the log has any, once that was looked up.
        self.key_rollups: bool | None = None
        self.problems: list[str] = []

    @property
    def num_left(self) -> int:
        """How many objects stay, or may hold objects that stay."""
        return self.num_held + len(self.problems)


class Deleter(GarbageWork):
    """Deletes one log's garbage; any number may run at once, and repeat each other's work."""

    def log_id(self) -> LogId:
        """Name the life of the log whose garbage is deleted."""
        return self._stores.manifests.log_id()

    # ------------------------------------------------------------------ delete

    @checked(path=given_garbage_path, now_us=optional(integer))
    def wait_s(self, path: str, *, now_us: int | None = None) -> float:
        """Seconds until a garbage document's objects can be deleted, by the store's clock; 0 when they can.

        ``now_us`` is the store's time, if it was asked for before.
        """
        found = self._documents.describe(path)
        # If it is gone, what it named was deleted, or it was deleted wrongly and is about to be written again.
        return self._options.interval_s if found is None else self._wait_s(found, now_us)

    def _wait_s(self, found: ObjectMeta, now_us: int | None) -> float:
        if self._options.interval_s == 0:
            # Some stores list other fractions of a second than they report for one object.
            return 0.0
        now_us = self.store_now_us() if now_us is None else now_us
        return max(0.0, self._options.interval_s - (now_us - found.last_modified_us) / US_PER_S)

    @checked(path=given_garbage_path, progress=function)
    def delete(self, path: str, *, progress: Callable[[int], None] = lambda _: None) -> DeletionReport:
        """Delete what a garbage document names, if it is due; ``progress`` gets the number deleted so far."""
        found = self.due(path)
        due = found if isinstance(found, DeletionReport) else DueDocument(path, found)
        [deleted] = self.delete_due([due], progress=progress)
        return deleted

    @checked(documents=several, now_us=integer)
    def look(self, documents: Iterable[ObjectMeta], now_us: int) -> Iterator[DueDocument | DeletionReport]:
        """Load those of the documents listed that are due at the store's time ``now_us``, each when it is asked for.

        A document that has to wait is not read; its report says how long.
        """
        for meta in documents:
            wait_s = self._wait_s(meta, now_us)
            # The document may have changed since it was listed.
            found = DeletionReport(path=meta.path, wait_s=wait_s) if wait_s > 0 else self._due(meta.path, now_us)
            yield found if isinstance(found, DeletionReport) else DueDocument(meta.path, found)

    @checked(found=several, progress=function)
    def delete_due(
        self, found: Iterable[DueDocument | DeletionReport], *, progress: Callable[[int], None] = lambda _: None
    ) -> list[DeletionReport]:
        """Delete what due documents name; manifest, cursors and pins are read once for all of them.

        All were pruned before that read: what they name is in no later manifest, and so in no later pin.
        """
        references: list[Retainer] | None = None
        done = []
        for each in found:
            if isinstance(each, DeletionReport):
                done.append(each)
                continue
            references = self.references() if references is None else references
            part = self._delete_part(each.path, DeletionPart.whole(each.garbage), _Deletion(references, progress))
            done.append(self.finish(each.path, [part]))
        return done

    @checked(paths=several)
    def held(self, paths: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Name those of the objects that pins refer to, each with the names of these pins."""
        references = {
            name: References([pin.manifest.pointers], self._stores.snapshots.load, partly_deleted=not pin.complete)
            for name, pin in self._stores.pins.list().items()
        }
        for path in paths:
            pins = tuple(name for name, each in references.items() if each.retains(path))
            if pins:
                yield path, pins

    @checked(garbage=instance_of(Garbage), references=optional(several))
    def objects(self, garbage: Garbage, references: Sequence[Retainer] | None = None) -> Iterator[str]:
        """Name what deleting a garbage document's objects would delete now: all that nothing refers to."""
        references = self.references() if references is None else references
        for path in chain(self.dropped_objects(garbage), garbage.orphans):
            if not any_retains(references, path):
                yield path

    @checked(garbage=instance_of(Garbage))
    def dropped_objects(self, garbage: Garbage) -> Iterator[str]:
        """Name what a garbage document leads to, except its orphans, held or not."""
        part = DeletionPart.whole(garbage)
        return chain(every_path(part.dropped, self._stores.snapshots.load), part.replaced)

    @checked(path=given_garbage_path, now_us=optional(integer))
    def due(self, path: str, *, now_us: int | None = None) -> Garbage | DeletionReport:
        """Load a garbage document that is due; a report when it is gone or has to wait.

        InvalidRequestError when it was not pruned.
        """
        found = self._due(path, now_us)
        if isinstance(found, DeletionReport) and found.problems:
            raise InvalidRequestError(found.problems[0])
        return found

    def _due(self, path: str, now_us: int | None) -> Garbage | DeletionReport:
        seen = self._documents.load(path)
        if seen is None:
            return DeletionReport(path=path)
        if not seen.document.pruned:
            # A hint it may have is that of an earlier document of its name, and arrived late: without it, the next
            # collection reads this document and finishes it.
            self._documents.unhint(path)
            log = self._stores.url
            message = f"log {log}: expected {path} to be pruned before it is deleted, found it was not: collect again"
            return DeletionReport(path=path, problems=(message,))
        wait_s = self.wait_s(path, now_us=now_us)
        return DeletionReport(path=path, wait_s=wait_s) if wait_s > 0 else seen.document

    @checked(path=given_garbage_path, part=instance_of(DeletionPart), progress=function)
    def delete_part(
        self, path: str, part: DeletionPart, *, progress: Callable[[int], None] = lambda _: None
    ) -> DeletionReport:
        """Delete a part of what a garbage document that is due names; the document stays."""
        return self._delete_part(path, part, _Deletion(self.references(), progress))

    def _delete_part(self, path: str, part: DeletionPart, done: _Deletion) -> DeletionReport:
        self._delete_pointers(part.dropped, done)
        self._delete_paths(part.replaced, done)
        held = done.num_held
        # An orphan that is held by now is no orphan any more: the document does not wait for it.
        self._delete_paths(part.orphans, done)
        return DeletionReport(
            path=path,
            num_deleted=done.num_deleted,
            num_held=held,
            num_orphans_held=done.num_held - held,
            problems=tuple(done.problems),
        )

    @checked(path=given_garbage_path, parts=several)
    def finish(self, path: str, parts: Sequence[DeletionReport]) -> DeletionReport:
        """Add up the reports of all parts of a garbage document; delete it when nothing is left of it."""
        deleted = DeletionReport(
            path=path,
            num_deleted=sum(part.num_deleted for part in parts),
            num_held=sum(part.num_held for part in parts),
            num_orphans_held=sum(part.num_orphans_held for part in parts),
            problems=tuple(problem for part in parts for problem in part.problems),
        )
        if deleted.finished:
            self._documents.forget(path, all_deleted=not deleted.num_orphans_held)
        text = "log %s: deleted %d objects of %s; pins hold %d; %d snapshots cannot be read"
        held, unread = deleted.num_held, len(deleted.problems)
        level = logging.WARNING if unread else logging.INFO
        COLLECT.log(level, text, self._stores.url, deleted.num_deleted, path, held, unread)
        return deleted

    def documents(self) -> Iterator[ObjectMeta]:
        """List the garbage documents, in order of their paths."""
        return self._documents.list()

    def pending(self) -> list[Garbage]:
        """Load all garbage documents."""
        return list(self.load(self.documents()))

    @checked(documents=several)
    def load(self, documents: Iterable[ObjectMeta]) -> Iterator[Garbage]:
        """Load documents that were listed, each when it is asked for; those that are gone are left out."""
        for meta in documents:
            seen = self._documents.load(meta.path)
            if seen is not None:
                yield seen.document

    def references(self) -> list[Retainer]:
        """Read what is referred to: CollectionRefusedError when a cursor or pin cannot be read, or dangles."""
        return read_references(self._stores)

    def _delete_pointers(self, pointers: Sequence[Pointer], done: _Deletion) -> None:
        """Delete snapshots after what they hold: until then they name what is left to delete."""
        self._delete_paths((p.path for p in pointers if not isinstance(p, SnapshotPointer)), done)
        for pointer in pointers:
            if isinstance(pointer, SnapshotPointer):
                self._delete_tree(pointer, done)

    def _delete_tree(self, pointer: SnapshotPointer, done: _Deletion) -> None:
        left = done.num_left
        try:
            self._delete_pointers(self._stores.snapshots.load(pointer).pointers, done)
        except MissingError:
            # Gone, after what it held.
            return
        except CorruptError as error:
            done.problems.append(str(error))
            return
        if done.num_left == left:
            self._delete_paths((pointer.path,), done)

    def _delete_paths(self, paths: Iterable[str], done: _Deletion) -> None:
        began_s, num_requests = self._stores.runtime.monotonic_s(), 0
        free = []
        for path in paths:
            if any_retains(done.references, path):
                done.num_held += 1
            else:
                free.append(path)
        objects, ahead_max = self._stores.objects, self._options.deletes_ahead
        if done.key_rollups is None and any(map(is_snapshot_path, free)):
            # Most logs have none at all.
            done.key_rollups = next(iter(objects.list_objects(KEY_ROLLUP_FOLDER)), None) is not None

        def delete(path: str) -> int:
            # A snapshot after its key roll-up: while it is there, a call that was cut short is repeated.
            paths = [key_rollup_path(path), path] if done.key_rollups and is_snapshot_path(path) else [path]
            for each in paths:
                objects.delete(each)
            return len(paths)

        for requests in map_ahead(self._stores.runtime, delete, free, count=ahead_max, share=share_of(objects)):
            num_requests, done.num_deleted = num_requests + requests, done.num_deleted + 1
            done.progress(done.num_deleted)
            # Slowly: the store serves others, too.
            left_s = began_s + num_requests / self._options.deletes_per_s - self._stores.runtime.monotonic_s()
            if left_s > 0:
                self._stores.runtime.sleep(left_s)

    # ------------------------------------------------------------------ orphans

    @checked(pending=several, now_us=optional(integer))
    def orphans(self, pending: Iterable[Garbage] = (), *, now_us: int | None = None) -> list[str]:
        """Name the oldest objects that nothing refers to and that are older than the interval.

        Objects of the ``pending`` documents are left out: they are deleted anyway. Documents are read only as needed.
        """
        if self._options.orphans_max == 0:
            return []
        return [meta.path for meta in self.orphans_below(DATA_FOLDERS, pending, now_us=now_us)]

    @checked(folders=several, pending=several, now_us=optional(integer))
    def orphans_below(
        self, folders: Sequence[str], pending: Iterable[Garbage], *, now_us: int | None = None
    ) -> list[ObjectMeta]:
        """Describe up to ``orphans_max`` orphans below some of the log's folders, oldest first.

        They are older than the interval at ``now_us``, the store's time, which is asked for if it is None.
        """
        stores = self._stores
        # One search goes by one policy; what it found is looked up by the policy of then before it is pruned.
        retention_s = receipt_retention_s(stores)
        leaving, known = PendingGarbage(pending, stores.snapshots.load), read_references(stores, retention_s)
        now_us = stores.store_now_us() if now_us is None else now_us
        limit_us = now_us - int(self._options.interval_s * US_PER_S)
        found = (
            meta
            for folder in folders
            for meta in self._listed(folder, retention_s)
            if meta.last_modified_us <= limit_us
            and not any_retains(known, meta.path)
            and not leaving.retains(meta.path)
        )
        return oldest(found, self._options.orphans_max)

    def _listed(self, folder: str, retention_s: Callable[[], int | None]) -> Iterator[ObjectMeta]:
        """List a folder; of that of key compaction only what may be of a pass that was not installed, or outlived."""
        installed = set[str]()
        for meta in self._stores.objects.list_objects(folder):
            if folder == COMPACTION_FOLDER and (token := deleted_token(meta.path)) is not None:
                # In the order of their names these come first.
                installed.add(token)
                continue
            if pass_object_token(meta.path) in installed and not (
                is_dropped_path(meta.path) and retention_s() is not None
            ):
                continue
            try:
                check_object_path(meta.path)
            except CorruptError as error:
                message = f"log {self._stores.url}: nothing is collected while a foreign file lies there: {error}"
                raise CollectionRefusedError(f"{message}: move it away") from error
            yield meta

    def store_now_us(self) -> int:
        """Return the store's time, by which the interval is measured; if it may not be written, an earlier one."""
        try:
            return self._stores.store_now_us()
        except StoreDeniedError:
            # On a full disk, deletions must need no space. The store's clock was there when these were written.
            clock = self._stores.objects.head(CLOCK)
            return max(self._stores.manifests.changed_us(), 0 if clock is None else clock.last_modified_us)


def oldest(metas: Iterable[ObjectMeta], count: int) -> list[ObjectMeta]:
    """Return the ``count`` oldest objects, oldest first."""
    return heapq.nsmallest(count, metas, key=lambda meta: (meta.last_modified_us, meta.path))
