"""Destroys a log: announces it, makes its name vacant, then deletes every object of it.

The announcement prevents pins, and is withdrawn if a pin was faster; the seal that follows prevents appends. A call
that was cut short is finished by the next. Source: docs/protocol/copies.md, "Destroy".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from wal3_core.arguments import checked, flag, function
from wal3_core.errors import (
    InvalidRequestError,
    LogError,
    LogNotFoundError,
    LogReplacedError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.format.manifest import BEING_DESTROYED, UNDO, Manifest, Seal
from wal3_core.format.paths import NO_LOG, PIN_FOLDER, LogId, check_log_name, life_folder, life_of, pin_name
from wal3_core.format.strict_json import Shown
from wal3_core.format.vacancy import Vacancy, VacancyKind
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.contents import ObjectKind, delete_remains, kind_of, own_objects, strangers, unknown_objects
from wal3_core.options import REBASES_MAX, CollectorOptions, RetryOptions
from wal3_core.runtime import Runtime, shared_runtime, wall_us
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.document_store import LoadedDocument, stamp
from wal3_core.store.documents.manifest_store import Entry, ManifestStore, new_log_id
from wal3_core.store.documents.named_store import is_tombstone
from wal3_core.store.object_store import ObjectMeta, ObjectStore, a_store, log_store
from wal3_core.store.retrying import with_retries

_NAMED_MAX = 10
# Rounds of deletes: an upload or a collection that was under way may leave something behind once or twice.
_ROUNDS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyPart(Shown):
    """How many objects of a kind there are, and their bytes."""

    kind: ObjectKind
    num_objects: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyPlan(Shown):
    """What destroying a log deletes: its objects by kind, and the names of its pins.

    ``log_id`` is the life that has the name now, or had it last; "" when that is unknown. ``destroying`` says that
    another call has begun to destroy the log, and goes on or was cut short.
    """

    log: str
    log_id: LogId
    parts: tuple[DestroyPart, ...]
    pins: tuple[str, ...]
    destroying: bool = False

    SHOWN = "log log_id num_objects num_bytes parts pins destroying"

    @property
    def num_objects(self) -> int:
        """How many objects are deleted."""
        return sum(part.num_objects for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """How many bytes are deleted."""
        return sum(part.num_bytes for part in self.parts)


@checked(store=a_store, log=check_log_name)
def plan_destroy(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> DestroyPlan:
    """Say what destroying a log would delete; changes nothing.

    LogNotFoundError when there is nothing of that name; InvalidRequestError names objects under its
    root that no log has. Logs below it are others, and left out.
    """
    runtime = runtime or shared_runtime()
    root = log_store(with_retries(store, runtime), check_log_name(log))
    seen = ManifestStore(root, runtime).look()
    entry = None if seen is None else seen.document
    destroyed = isinstance(entry, Vacancy) and entry.kind is VacancyKind.DESTROYED
    objects: Counter[ObjectKind] = Counter()
    num_bytes: Counter[ObjectKind] = Counter()
    pins: list[str] = []
    unknown: list[str] = []
    for meta in chain(own_objects(root), strangers(root)):
        kind = kind_of(meta.path)
        if kind is None:
            unknown.append(meta.path)
            if len(unknown) > _NAMED_MAX:
                break
            continue
        if kind is ObjectKind.MANIFEST and destroyed:
            continue
        objects[kind] += 1
        num_bytes[kind] += meta.size
        pin = _pin(root, meta, entry) if kind is ObjectKind.PIN else None
        pins += [] if pin is None else [pin]
    if unknown:
        raise unknown_objects(root, unknown)
    if not objects:
        raise LogNotFoundError(f"log {root.url}: expected a log to destroy, found nothing")
    parts = (
        DestroyPart(kind=kind, num_objects=objects[kind], num_bytes=num_bytes[kind])
        for kind in ObjectKind
        if objects[kind]
    )
    return DestroyPlan(
        log=log,
        log_id=NO_LOG if entry is None else entry.log_id,
        parts=tuple(parts),
        pins=tuple(pins),
        destroying=isinstance(entry, Manifest) and entry.destroying,
    )


def _pin(root: ObjectStore, meta: ObjectMeta, entry: Entry | None) -> str | None:
    """Return a pin's name; None for one that was deleted, or of a life that is over."""
    log_id = life_of(meta.path)
    if log_id is None or (entry is not None and log_id != entry.log_id) or is_tombstone(root, meta):
        return None
    return pin_name(meta.path.removeprefix(life_folder(log_id)))


@checked(store=a_store, log=check_log_name, also_pinned=flag, progress=function)
def destroy(
    store: ObjectStore,
    log: str,
    *,
    also_pinned: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    runtime: Runtime | None = None,
) -> int:
    """End a log and delete every object of it; returns how many there were.

    Appends get SealedError once it is sealed for that, and NotDurableError once it is gone. InvalidRequestError,
    and nothing deleted, when something lies there that no log has, or when the log has pins (unless ``also_pinned``).
    For a pin that was made meanwhile, the announcement in the manifest is withdrawn; a log that was sealed by then
    stays sealed. LogReplacedError when another log has the name by now, which is left alone.
    ``progress`` gets the number of objects deleted and of all objects. Repeat the call when it was cut short, or take
    it back by ``undo_destroy`` as long as there is a log. What a lost manifest, or a copy that was cut short, left
    behind is deleted, too.
    """
    runtime = runtime or shared_runtime()
    store = with_retries(store, runtime)
    plan = plan_destroy(store, log, runtime=runtime)
    if plan.pins and not also_pinned:
        raise _pinned(log, plan.pins, f" (it is {BEING_DESTROYED}: {UNDO})" if plan.destroying else "")

    def report(done: int) -> None:
        progress(done, max(done, plan.num_objects))

    destroying = _Destroying(log_store(store, log), plan.log_id, runtime, report)
    try:
        num_objects = destroying.run(also_pinned=also_pinned)
    except StoreDeniedError as error:
        # Each step begins with a write of the manifest, for which there was no space.
        if not error.full or not (destroying.delete_other_lives() + _delete_garbage(store, log, plan.log_id, runtime)):
            raise
        num_objects = destroying.run(also_pinned=also_pinned)
    MAINTAIN.info("log %s/%s: destroyed, %d objects deleted", store.url, log, num_objects)
    return num_objects


def _delete_garbage(store: ObjectStore, log: str, log_id: LogId, runtime: Runtime) -> int:
    """Delete what is marked for deletion, which needs no space, and return how many objects; 0 if that fails.

    Also what readers of an older manifest may still read: they lose the log anyway.
    """
    deleter = Deleter(store, log, options=CollectorOptions(interval_s=0), runtime=runtime, log_id=log_id)
    try:
        return sum(deleted.num_deleted for deleted in deleter.delete_due(deleter.look(deleter.documents(), 0)))
    except LogError:
        return 0


@checked(store=a_store, log=check_log_name)
def undo_destroy(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> Seal | None:
    """Take back a destroy that was cut short, so that the log can be pinned and copied again; returns its seal, if any.

    A seal stays: only a copy of a log that the destroy has sealed takes appends. Nothing is changed in a log that is
    not being destroyed. LogNotFoundError when the log is gone; UnavailableError when another call is destroying it.
    """
    runtime = runtime or shared_runtime()
    manifests = ManifestStore(log_store(with_retries(store, runtime), log), runtime)
    _withdraw(manifests)
    now = manifests.load().manifest
    if now.destroying:
        raise UnavailableError(
            f"log {manifests.url}: expected no process to destroy it, found that one does: end it, then undo again"
        )
    MAINTAIN.info("log %s: its destroy was taken back", manifests.url)
    return now.seal


class _Destroying:
    def __init__(self, root: ObjectStore, log_id: LogId, runtime: Runtime, progress: Callable[[int], None]) -> None:
        self._root = root
        self._log_id = log_id
        self._runtime = runtime
        self._progress = progress
        self._retry = RetryOptions()
        self._manifests = ManifestStore(root, runtime, self._retry)

    def run(self, *, also_pinned: bool) -> int:
        """Make the name vacant, and delete what is left."""
        # Listed before the name is vacant: all of them are over then.
        lives = self._manifests.lives()
        deleted = int(self._vacate(lives, also_pinned=also_pinned))
        self._progress(deleted)
        for _ in range(_ROUNDS_MAX):
            before = deleted
            deleted += delete_remains(
                self._root,
                lives,
                self._runtime,
                self._retry,
                progress=lambda done, before=before: self._progress(before + done),  # type: ignore[misc]  # before is an int
            )
            if deleted == before:
                return deleted
        raise UnavailableError(f"log {self._root.url}: objects kept appearing while it was destroyed: try again later")

    def delete_other_lives(self) -> int:
        """Delete what earlier lives left, which needs no space; returns how many objects."""
        others = [life for life in self._manifests.lives() if life != self._log_id]
        # After the listing: all of them are over if the name is still that of the life to be destroyed.
        self._look()
        return delete_remains(self._root, others, self._runtime, self._retry)

    def _look(self) -> LoadedDocument[Entry] | None:
        """Load what has the name; LogReplacedError when that is not what was to be destroyed."""
        seen = self._manifests.look()
        found = NO_LOG if seen is None else seen.document.log_id
        if found != self._log_id:
            raise LogReplacedError(
                f"log {self._root.url}: expected log {self._log_id or 'none'}, which was to be destroyed, found log"
                f" {found or 'none'}: left alone"
            )
        return seen

    def _vacate(self, lives: Sequence[LogId], *, also_pinned: bool) -> bool:
        """Make the name vacant, and return whether it was a log's; what is left lies in lives that are over.

        Each step is a CAS of the manifest that was loaded, and pins are listed between the load and the last CAS:
        the creator of a pin that is missed finds the announcement, or finds none and makes that CAS fail.
        """
        was_log, unpinned = False, also_pinned
        for _ in range(REBASES_MAX):
            seen = self._look()
            entry = None if seen is None else seen.document
            if isinstance(entry, Vacancy) and entry.kind is VacancyKind.DESTROYED:
                return was_log
            # Perhaps only now: a copy that seemed to be cut short was finished.
            was_log = was_log or isinstance(entry, Manifest)
            if isinstance(entry, Manifest) and not entry.destroying:
                # Perhaps it was withdrawn, and a pin made before this call's next step.
                unpinned = also_pinned
                self._manifests.swap(entry.announce_destroy(), seen)
            elif isinstance(entry, Manifest) and entry.seal is None:
                # Before the seal, which is never lifted: a log that a pin keeps is left as it was.
                if not unpinned:
                    self._refuse_pinned(entry)
                unpinned = True
                by, now_us = stamp(self._runtime), wall_us(self._runtime)
                seal = Seal(reason=BEING_DESTROYED, sealed_by=by, timestamp_us=now_us)
                self._manifests.swap(entry.apply_seal(seal), seen)
            else:
                if isinstance(entry, Manifest) and not also_pinned:
                    self._refuse_pinned(entry)
                log_id = next(iter(lives), new_log_id(self._runtime)) if entry is None else entry.log_id
                vacancy = Vacancy(kind=VacancyKind.DESTROYED, log_id=log_id)
                if self._manifests.swap(vacancy, seen) is not None:
                    return was_log
        raise UnavailableError(f"log {self._root.url}: the manifest changed {REBASES_MAX} times over")

    def _refuse_pinned(self, found: Manifest) -> None:
        """Refuse if there is a pin made before the announcement: its creator may rely on it."""
        folder = f"{life_folder(self._log_id)}{PIN_FOLDER}"
        pins = [
            pin_name(f"{PIN_FOLDER}{meta.path.removeprefix(folder)}")
            for meta in self._root.list_objects(folder)
            if not is_tombstone(self._root, meta)
        ]
        if pins:
            # Also another call's: a call that destroys the log announces it again.
            with suppress(LogNotFoundError):
                _withdraw(ManifestStore(self._root, self._runtime, self._retry, log_id=self._log_id))
            sealed = found.seal is not None and found.seal.reason == BEING_DESTROYED
            state = f" (the log stays, sealed as {BEING_DESTROYED}: a copy of it is open)" if sealed else ""
            raise _pinned(self._root.url, pins, state)


def _withdraw(manifests: ManifestStore) -> None:
    manifests.change(manifests.load(), lambda manifest: manifest.withdraw_destroy() if manifest.destroying else None)


def _pinned(log: str, names: Sequence[str], state: str) -> InvalidRequestError:
    more = " and more" if len(names) > _NAMED_MAX else ""
    return InvalidRequestError(
        f"log {log}: expected no pins, found {', '.join(names[:_NAMED_MAX])}{more}:"
        f" remove them, or say that they go, too{state}"
    )
