"""Destroys a log: seals it, then deletes every object of it, the manifest last.

While the manifest is there, the log is sealed and says why; a call that was cut short is finished by
the next. What is not a log's is never deleted: one such object stops everything. Source:
docs/protocol.md, "Destroy".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, LogNotFoundError, SealedError, UnavailableError
from wal3_core.log.contents import Kind, kind_of, own_objects, strangers
from wal3_core.log.sealer import seal
from wal3_core.model.manifest import BEING_DESTROYED
from wal3_core.model.paths import (
    CURSOR_FOLDER,
    FRAGMENT_FOLDER,
    GARBAGE_FOLDER,
    MANIFEST,
    PIN_FOLDER,
    POLICY,
    SNAPSHOT_FOLDER,
    check_log_name,
    pin_name,
)
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, ahead, shared_runtime
from wal3_core.storage.manifest_store import ManifestStore
from wal3_core.storage.object_store import ObjectStore, log_store
from wal3_core.storage.retry import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.model.manifest import Seal
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectMeta

# Pins first, to stop at one that was made meanwhile while all is there still; the manifest is not one of them.
_FOLDERS = (PIN_FOLDER, CURSOR_FOLDER, GARBAGE_FOLDER, SNAPSHOT_FOLDER, FRAGMENT_FOLDER)
_NAMED_MAX = 10
_CHUNK = 1000
_DELETES_AHEAD = 8
# An upload or a collection that was under way may leave something behind once or twice.
_ROUNDS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How many objects of a kind there are, and their bytes."""

    kind: Kind
    num_objects: int
    num_bytes: int

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {"kind": str(self.kind), "num_objects": self.num_objects, "num_bytes": self.num_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyPlan:
    """What destroying a log deletes: its objects by kind, and the names of its pins."""

    log: str
    parts: tuple[Part, ...]
    pins: tuple[str, ...]

    @property
    def num_objects(self) -> int:
        """How many objects go."""
        return sum(part.num_objects for part in self.parts)

    @property
    def num_bytes(self) -> int:
        """How many bytes go."""
        return sum(part.num_bytes for part in self.parts)

    @property
    def has_manifest(self) -> bool:
        """Whether it is a log, not what is left of one."""
        return any(part.kind is Kind.MANIFEST for part in self.parts)

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "num_objects": self.num_objects,
            "num_bytes": self.num_bytes,
            "parts": [part.to_json() for part in self.parts],
            "pins": [{"pin": name} for name in self.pins],
        }


def plan_destroy(store: ObjectStore, log: str) -> DestroyPlan:
    """Say what destroying a log would delete; changes nothing.

    LogNotFoundError when there is nothing of that name; InvalidRequestError names objects under its
    root that no log has. Logs below it are others, and not looked at.
    """
    inside = log_store(store, check_log_name(log))
    objects: Counter[Kind] = Counter()
    num_bytes: Counter[Kind] = Counter()
    pins: list[str] = []
    unknown: list[str] = []
    for found in chain(own_objects(inside), strangers(inside)):
        if found.kind is None:
            unknown.append(found.meta.path)
            if len(unknown) > _NAMED_MAX:
                break
            continue
        objects[found.kind] += 1
        num_bytes[found.kind] += found.meta.size
        if found.kind is Kind.PIN:
            pins.append(pin_name(found.meta.path))
    if unknown:
        raise _unknown(inside, unknown)
    if not objects:
        message = f"log {inside.url}: expected a log to destroy, found nothing"
        raise LogNotFoundError(message)
    parts = (Part(kind=kind, num_objects=objects[kind], num_bytes=num_bytes[kind]) for kind in Kind if objects[kind])
    return DestroyPlan(log=log, parts=tuple(parts), pins=tuple(pins))


def destroy(
    store: ObjectStore,
    log: str,
    *,
    also_pinned: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    runtime: Runtime | None = None,
) -> int:
    """Seal a log and delete every object of it; returns how many there were.

    Writers get SealedError from the first moment on. InvalidRequestError, and nothing deleted, when the log
    has pins (unless ``also_pinned``) or when something lies there that no log has. ``progress`` hears of
    objects deleted and objects there are. Repeat the call when it was cut short. What a lost manifest
    left behind is deleted, too.
    """
    runtime = runtime or shared_runtime()
    plan = plan_destroy(store, log)
    if plan.pins and not also_pinned:
        raise _pinned(log, plan.pins)
    inside = log_store(store, log)
    manifests = ManifestStore(inside, runtime)
    destroying = _Destroying(
        inside,
        _sealed(store, log, manifests, runtime) if plan.has_manifest else None,
        runtime,
        lambda done: progress(done, max(done, plan.num_objects)),
    )
    return destroying.run(also_pinned=also_pinned)


def _sealed(store: ObjectStore, log: str, manifests: ManifestStore, runtime: Runtime) -> Seal | None:
    """Seal the log, unless it is."""
    try:
        return seal(store, log, reason=BEING_DESTROYED, runtime=runtime)
    except SealedError:
        return manifests.load().manifest.seal


class _Destroying:
    """The deletes, each after a look that what was listed is still what is to be destroyed."""

    def __init__(
        self, store: ObjectStore, seal: Seal | None, runtime: Runtime, progress: Callable[[int], None]
    ) -> None:
        self._store = store
        self._seal = seal
        self._runtime = runtime
        self._progress = progress
        self._retry = RetryOptions()
        self._manifests = ManifestStore(store, runtime, self._retry)
        self._deleted = 0

    def run(self, *, also_pinned: bool) -> int:
        """Delete until nothing but the manifest is left, and then that."""
        for _ in range(_ROUNDS_MAX):
            before = self._deleted
            for metas in self._chunks():
                if not self._still_there():
                    return self._deleted
                self._check(metas, also_pinned=also_pinned)
                self._delete([meta.path for meta in metas])
            if self._deleted == before:
                break
        else:
            message = f"log {self._store.url}: objects kept appearing while it was destroyed: try again later"
            raise UnavailableError(message)
        if self._seal is not None and self._still_there():
            self._delete([MANIFEST])
        return self._deleted

    def _chunks(self) -> Iterator[list[ObjectMeta]]:
        for folder in _FOLDERS:
            listed = iter(self._store.list_objects(folder))
            # A log that is begun anew has no fragment or snapshot at a path of this one, but may have a cursor.
            count = _DELETES_AHEAD if folder in {PIN_FOLDER, CURSOR_FOLDER} else _CHUNK
            while chunk := list(islice(listed, count)):
                yield chunk
        policy = self._store.head(POLICY)
        if policy is not None:
            yield [policy]

    def _still_there(self) -> bool:
        """Tell whether the log is the one that was sealed; False when another call has destroyed it meanwhile.

        Asked after what is to be deleted was listed: a log that is begun anew under the name keeps its objects.
        """
        try:
            found = until_answered(self._manifests.load, self._retry, self._runtime)
        except LogNotFoundError:
            return self._seal is None
        if self._seal is None or found.manifest.seal != self._seal:
            message = f"log {self._store.url}: expected the log that was to be destroyed, found another: left alone"
            raise InvalidRequestError(message)
        return True

    def _check(self, metas: list[ObjectMeta], *, also_pinned: bool) -> None:
        kinds = {meta.path: kind_of(meta.path) for meta in metas}
        unknown = [path for path, kind in kinds.items() if kind is None]
        if unknown:
            raise _unknown(self._store, unknown)
        pins = [pin_name(path) for path, kind in kinds.items() if kind is Kind.PIN]
        if pins and not also_pinned:
            raise _pinned(self._store.url, pins)

    def _delete(self, paths: list[str]) -> None:
        for _ in ahead(self._runtime, self._delete_one, paths, count=_DELETES_AHEAD):
            self._deleted += 1
            self._progress(self._deleted)

    def _delete_one(self, path: str) -> None:
        until_answered(lambda: self._store.delete(path), self._retry, self._runtime)


def _unknown(store: ObjectStore, paths: list[str]) -> InvalidRequestError:
    more = " and more" if len(paths) > _NAMED_MAX else ""
    return InvalidRequestError(
        f"log {store.url}: expected nothing but a log's objects, found {', '.join(paths[:_NAMED_MAX])}{more}:"
        f" move or delete them first"
    )


def _pinned(log: str, names: tuple[str, ...] | list[str]) -> InvalidRequestError:
    more = " and more" if len(names) > _NAMED_MAX else ""
    return InvalidRequestError(
        f"log {log}: expected no pins, found {', '.join(names[:_NAMED_MAX])}{more}: remove them, or say that"
        f" they go, too"
    )
