"""Cursors on storage: created, moved and deleted by CAS, moved with a witness.

A cursor that is created or moved back is written first; then the manifest is read. If the log no longer
holds the position, the write came too late, and the cursor is put back. Source: docs/protocol.md, "Cursors".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, make_plain, optional, record_bytes, several, text, wrong
from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
    StoreDeniedError,
)
from wal3_core.model.compacting import withdraw_compaction
from wal3_core.model.cursor import BYTES_MAX, Cursor
from wal3_core.model.offset_ranges import OffsetRanges
from wal3_core.model.paths import CURSOR_FOLDER, check_cursor_name, cursor_name, cursor_path
from wal3_core.model.position import LogPosition
from wal3_core.model.record import Record, position_after
from wal3_core.model.strict_json import U64_MAX
from wal3_core.model.subscription import Subscribed
from wal3_core.options import CURSORS_AHEAD, RetryOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime, wall_us
from wal3_core.storage.documents.manifest_store import Installed, ManifestStore
from wal3_core.storage.documents.named_store import NamedStore
from wal3_core.storage.object_store import Etag, ObjectStore, log_store, object_url, share_of
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient
from wal3_core.storage.retry import attempts, for_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.storage.documents.document_store import Seen


@dataclass(frozen=True, slots=True)
class Witness:
    """A cursor as it was loaded, with its version: what a move must still find."""

    cursor: Cursor
    etag: Etag

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, cursor=instance_of(Cursor), etag=text)


class CursorStore:
    """The cursors of one life of a log: that of ``log_id``, or else the first one found.

    LogReplacedError when the log's name now leads to another log.
    """

    @checked(**opening(retry=options_of(RetryOptions)))
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        runtime: Runtime | None = None,
        retry: RetryOptions | None = None,
        log_id: LogId | None = None,
    ) -> None:
        self._runtime = runtime or shared_runtime()
        self._retry = retry = retry or RetryOptions()
        inside = patient(log_store(store, log), self._runtime, retry)
        self._manifests = ManifestStore(inside, self._runtime, retry, log_id=log_id)
        self._store = self._manifests.objects
        self._cursors = NamedStore(self._manifests, self._runtime, retry, Cursor.from_fields, bytes_max=BYTES_MAX)
        self._known: Installed | None = None
        # By name, the versions whose position was checked to be held: a collection keeps everything from there on.
        self._held: dict[str, Etag] = {}

    @checked(name=check_cursor_name, position=instance_of(LogPosition), subscribed=optional(instance_of(Subscribed)))
    def init(self, name: str, position: LogPosition, *, subscribed: Subscribed | None = None) -> Witness:
        """Create a cursor; CursorConflictError when it exists.

        GarbageCollectedError when the position is gone: the cursor is then at the log's first position. ``subscribed``
        makes it the cursor of a subscription to a feed.
        """
        self._check_position(name, position)
        witness = self._create(name, self._cursor(position, generation=0, subscribed=subscribed))
        try:
            self._check_still_held(name, witness, None)
        except (LogReplacedError, LogNotFoundError):
            # It belongs to a life that is over, so nothing relies on it.
            self._store.delete(cursor_path(name))
            raise
        self._remember_held(name, witness)
        return witness

    @checked(name=check_cursor_name)
    def load(self, name: str) -> Witness | None:
        """Load a cursor; None when there is none of that name."""
        seen = self._cursors.load(cursor_path(name))
        if seen is None:
            # Perhaps because the log is gone: that is an error.
            self._manifest()
            return None
        return Witness(seen.document, seen.etag)

    @checked(
        name=check_cursor_name,
        position=instance_of(LogPosition, Record),
        witness=instance_of(Witness),
        keys=several,
        subscribed=optional(instance_of(Subscribed)),
    )
    def save(
        self,
        name: str,
        position: LogPosition | Record,
        witness: Witness,
        *,
        keys: Iterable[tuple[bytes, int]] = (),
        subscribed: Subscribed | None = None,
    ) -> Witness:
        """Move a cursor from the witness's version; CursorConflictError when it has another version.

        A record as the position means that it is processed: the cursor moves to the offset after it.
        A move backwards, or from a version that this store did not check, checks that the log still holds the
        position; if not, it raises GarbageCollectedError, with the cursor back where it was.
        ``keys`` are those of a consumer by key that are ahead of the position, rising; others are forgotten.
        The ``appends`` of a writer that names them are those of the witness.

        Without ``subscribed``, the cursor of a subscription remains one, which has acknowledged nothing ahead of it:
        what is at or after the position is delivered again.
        """
        position = position_after(position) if isinstance(position, Record) else position
        ahead = tuple(map(_plain_key, keys))
        self._check_position(name, position, ahead)
        _check_life(name, witness.cursor, self._manifests.log_id())
        before = witness.cursor
        kept = subscribed or _nothing_done(before.subscribed)
        moved = self._cursor(position, generation=before.generation + 1, subscribed=kept)
        moved = replace(_with_keys(name, moved, ahead), appends=before.appends)
        saved = self._put(name, moved, witness)
        # The process that moved it there may have died before its check.
        if self._held.get(name) != witness.etag or position.offset < before.position.offset:
            self._check_still_held(name, saved, witness)
        self._remember_held(name, saved)
        return saved

    def list(self) -> dict[str, Witness]:
        """Load all cursors by name; CorruptError for a file that is no cursor."""
        found = {}
        for path, witness in self.survey():
            if isinstance(witness, CorruptError):
                raise witness
            found[cursor_name(path)] = witness
        return found

    def offsets(self) -> dict[str, int]:
        """Load the offsets of all cursors that keep records, by name; CorruptError for a file that is no cursor.

        Does not check that the log still exists: a collector learns that from its CAS.
        """
        found = {}
        for path, witness in self._survey():
            if isinstance(witness, CorruptError):
                raise witness
            if witness.cursor.pins:
                found[cursor_name(path)] = witness.cursor.position.offset
        return found

    def survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        """Yield the cursors by path, some loaded ahead; for an unreadable one its error."""
        yield from self._survey()
        # Cursors may be missing because the log is gone: that is an error.
        self._manifest()

    def _survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        paths = (meta.path for meta in self._store.list_objects(CURSOR_FOLDER))
        for path, witness in map_ahead(
            self._runtime, self._look, paths, count=CURSORS_AHEAD, share=share_of(self._store)
        ):
            if witness is not None:
                yield path, witness

    def _look(self, path: str) -> tuple[str, Witness | CorruptError | None]:
        try:
            seen = self._cursors.load(cursor_path(cursor_name(path)))
        except CorruptError as error:
            return path, error
        return path, None if seen is None else Witness(seen.document, seen.etag)

    @checked(name=check_cursor_name)
    def delete(self, name: str) -> None:
        """Delete a cursor: the records it kept can be collected. Its name can be used again at once.

        A tombstone of some 250 bytes stays as long as the log. UnavailableError when it is undetermined whether the
        cursor was deleted.
        """
        self._manifest()
        self._cursors.delete(cursor_path(name))

    def _cursor(self, position: LogPosition, *, generation: int, subscribed: Subscribed | None) -> Cursor:
        now_us = wall_us(self._runtime)
        return Cursor(position=position, epoch_us=now_us, generation=generation, subscribed=subscribed)

    def _check_position(self, name: str, position: LogPosition, keys: tuple[tuple[bytes, int], ...] = ()) -> None:
        # The log's end never moves back, so an offset below a known end is valid.
        known = None if self._known is None else self._known.manifest
        furthest = max([position.offset, *(offset for _, offset in keys)])
        if known is None or furthest > known.next.position.offset:
            known = self._manifest()
        _check_range(name, position, furthest, known.next.position)

    def _manifest(self) -> Manifest:
        known = self._manifests.load(self._known)
        self._known = known
        return known.manifest

    def _create(self, name: str, cursor: Cursor) -> Witness:
        path = cursor_path(name)
        seen = self._cursors.look(path)
        if seen is not None and isinstance(seen.document, Cursor):
            return self._saved(name, None, "no cursor")
        generation, etag = (0, None) if seen is None else (seen.document.generation, seen.etag)
        saved = self._cursors.save(path, replace(cursor, generation=generation + 1), etag)
        return self._saved(name, saved, "no cursor")

    def _put(self, name: str, cursor: Cursor, witness: Witness) -> Witness:
        saved = self._cursors.save(cursor_path(name), cursor, witness.etag)
        return self._saved(name, saved, f"generation {witness.cursor.generation}")

    def _saved(self, name: str, saved: Seen[Cursor] | None, expected: str) -> Witness:
        if saved is None:
            self._manifest()
            place = object_url(self._store, cursor_path(name))
            raise CursorConflictError(f"cursor {place}: expected {expected}, found another version")
        return Witness(saved.document, saved.etag)

    def _withdraw_compaction(self, position: LogPosition) -> None:
        """Withdraw a pass that is announced above the position: it may have read the cursors before.

        A process that is not allowed to change the manifest waits until the pass is over: it sees this cursor, or is
        installed before this returns.
        """

        def withdrawn(manifest: Manifest) -> Manifest | None:
            announced = manifest.compacting
            above = announced is not None and announced.limit > position.offset
            return withdraw_compaction(manifest) if above else None

        denied: StoreDeniedError | None = None
        for _ in attempts(for_store(self._retry, self._store), self._runtime):
            known = self._known
            assert known is not None
            if withdrawn(known.manifest) is None:
                return
            if denied is None:
                try:
                    self._manifests.change(known, withdrawn)
                except StoreDeniedError as error:
                    denied = error
            self._manifest()
        if denied is not None:
            raise denied

    def _remember_held(self, name: str, saved: Witness) -> None:
        """Spare the next move forward its check; but not that of a cursor that kept nothing, and is to pin by then."""
        if saved.cursor.pins:
            self._held[name] = saved.etag
        else:
            self._held.pop(name, None)

    def _check_still_held(self, name: str, saved: Witness, before: Witness | None) -> None:
        first = self._manifest().first_kept.position
        position, subscribed = saved.cursor.position, saved.cursor.subscribed
        if not saved.cursor.pins:
            return
        if position.offset >= first.offset:
            self._withdraw_compaction(position)
            return
        # By CAS, so that a move by another process meanwhile stands. A new cursor is not deleted but put at the log's
        # first position, since another process may already rely on it.
        back = first if before is None else max(first, before.cursor.position)
        with contextlib.suppress(CursorConflictError):
            moved = self._cursor(back, generation=saved.cursor.generation + 1, subscribed=_nothing_done(subscribed))
            self._put(name, replace(moved, appends=saved.cursor.appends), saved)
            # Like any cursor that was moved back: a pass may have read the cursors before.
            self._manifest()
            self._withdraw_compaction(back)
        message = (
            f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset};"
            f" it is now at {back.offset}: load it and continue from there, or delete it"
        )
        raise GarbageCollectedError(message)


def _check_life(name: str, cursor: Cursor, log_id: LogId) -> None:
    if cursor.log_id != log_id:
        message = (
            f"cursor {name}: expected one of log {log_id}, found one of log {cursor.log_id}, which had this name"
            f" before: load it again"
        )
        raise LogReplacedError(message)


def _check_range(name: str, position: LogPosition, furthest: int, limit: LogPosition) -> None:
    if position.offset < 1 or furthest > limit.offset:
        # Beyond the end, it would skip what is appended there.
        found = position.offset if position.offset < 1 else furthest
        message = f"cursor {name}: expected an offset from 1 to {limit.offset}, found {found}"
        raise InvalidRequestError(message)
    if not 0 <= position.timestamp_us <= U64_MAX:
        message = f"cursor {name}: expected a timestamp within u64, found {position.timestamp_us}"
        raise InvalidRequestError(message)


def _plain_key(pair: object) -> tuple[bytes, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 - a key and an offset
        raise wrong("keys", "pairs of a key and an offset", pair)
    key, offset = pair
    return record_bytes(key, "keys: key"), integer(offset, "keys: offset")


def _with_keys(name: str, cursor: Cursor, keys: tuple[tuple[bytes, int], ...]) -> Cursor:
    """Return the cursor of a consumer by key; CursorConflictError for that of a subscription."""
    moved = replace(cursor, keys=keys)
    if moved.keys and moved.subscribed is not None:
        message = f"cursor {name}: expected that of a consumer by key, found that of a subscription to a feed"
        raise CursorConflictError(message)
    return moved


def _nothing_done(subscribed: Subscribed | None) -> Subscribed | None:
    """Return the subscription of a cursor that is put to another place."""
    return None if subscribed is None else replace(subscribed, done=OffsetRanges())
