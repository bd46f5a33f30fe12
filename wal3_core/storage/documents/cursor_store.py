"""Cursors on storage: created, moved and deleted by CAS, moved with a witness.

A cursor that is created or moved back is written first; then the manifest is read. If the log no longer
holds the position, the write came too late, and the cursor is put back. Source: docs/protocol.md, "Cursors".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, make_plain, text
from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
)
from wal3_core.model.cursor import BYTES_MAX, Cursor
from wal3_core.model.paths import CURSOR_FOLDER, check_cursor_name, cursor_name, cursor_path
from wal3_core.model.position import LogPosition
from wal3_core.model.record import Record, position_after
from wal3_core.model.strict_json import U64_MAX
from wal3_core.options import CURSORS_AHEAD, RetryOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.storage.documents.manifest_store import Installed, ManifestStore
from wal3_core.storage.documents.named_store import NamedStore
from wal3_core.storage.object_store import Etag, ObjectStore, log_store, object_url, share_of
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        retry = retry or RetryOptions()
        inside = patient(log_store(store, log), self._runtime, retry)
        self._manifests = ManifestStore(inside, self._runtime, retry, log_id=log_id)
        self._store = self._manifests.objects
        self._cursors = NamedStore(self._manifests, self._runtime, retry, Cursor.from_fields, bytes_max=BYTES_MAX)
        self._known: Installed | None = None
        # By name, the versions whose position was checked to be held: a collection keeps everything from there on.
        self._held: dict[str, Etag] = {}

    @checked(name=check_cursor_name, position=instance_of(LogPosition))
    def init(self, name: str, position: LogPosition) -> Witness:
        """Create a cursor; CursorConflictError when it exists.

        GarbageCollectedError when the position is gone: the cursor is then at the log's first position.
        """
        self._check_position(name, position)
        witness = self._create(name, position)
        try:
            self._check_still_held(name, witness, None)
        except (LogReplacedError, LogNotFoundError):
            # It belongs to a life that is over, so nothing relies on it.
            self._store.delete(cursor_path(name))
            raise
        self._held[name] = witness.etag
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

    @checked(name=check_cursor_name, position=instance_of(LogPosition, Record), witness=instance_of(Witness))
    def save(self, name: str, position: LogPosition | Record, witness: Witness) -> Witness:
        """Move a cursor from the witness's version; CursorConflictError when it has another version.

        A record as the position means that it is processed: the cursor moves to the offset after it.
        A move backwards, or from a version that this store did not check, checks that the log still holds the
        position; if not, it raises GarbageCollectedError, with the cursor back where it was.
        """
        position = position_after(position) if isinstance(position, Record) else position
        self._check_position(name, position)
        if witness.cursor.log_id != self._manifests.log_id():
            message = (
                f"cursor {name}: expected one of log {self._manifests.log_id()}, found one of log"
                f" {witness.cursor.log_id}, which had this name before: load it again"
            )
            raise LogReplacedError(message)
        moved = self._cursor(position, generation=witness.cursor.generation + 1)
        saved = self._put(name, moved, witness)
        # The process that moved it there may have died before its check.
        if self._held.get(name) != witness.etag or position.offset < witness.cursor.position.offset:
            self._check_still_held(name, saved, witness)
        self._held[name] = saved.etag
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
        """Load the offsets of all cursors, by name; CorruptError for a file that is no cursor.

        Does not check that the log still exists: a collector learns that from its CAS.
        """
        found = {}
        for path, witness in self._survey():
            if isinstance(witness, CorruptError):
                raise witness
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
        path = cursor_path(name)
        self._manifest()
        self._cursors.delete(path)

    def _cursor(self, position: LogPosition, *, generation: int) -> Cursor:
        return Cursor(
            position=position,
            epoch_us=self._runtime.now_us(),
            generation=generation,
        )

    def _check_position(self, name: str, position: LogPosition) -> None:
        # The log's end never moves back, so an offset below a known end is valid.
        known = None if self._known is None else self._known.manifest
        if known is None or position.offset > known.next.position.offset:
            known = self._manifest()
        limit = known.next.position
        if not 1 <= position.offset <= limit.offset:
            message = f"cursor {name}: expected an offset from 1 to {limit.offset}, found {position.offset}"
            raise InvalidRequestError(message)
        if not 0 <= position.timestamp_us <= U64_MAX:
            message = f"cursor {name}: expected a timestamp within u64, found {position.timestamp_us}"
            raise InvalidRequestError(message)

    def _manifest(self) -> Manifest:
        known = self._manifests.load(self._known)
        self._known = known
        return known.manifest

    def _create(self, name: str, position: LogPosition) -> Witness:
        path = cursor_path(name)
        seen = self._cursors.look(path)
        if seen is not None and isinstance(seen.document, Cursor):
            return self._saved(name, None, "no cursor")
        generation, etag = (0, None) if seen is None else (seen.document.generation, seen.etag)
        saved = self._cursors.save(path, self._cursor(position, generation=generation + 1), etag)
        return self._saved(name, saved, "no cursor")

    def _put(self, name: str, cursor: Cursor, witness: Witness) -> Witness:
        saved = self._cursors.save(cursor_path(name), cursor, witness.etag)
        return self._saved(name, saved, f"generation {witness.cursor.generation}")

    def _saved(self, name: str, saved: Seen[Cursor] | None, expected: str) -> Witness:
        if saved is None:
            self._manifest()
            place = object_url(self._store, cursor_path(name))
            message = f"cursor {place}: expected {expected}, found another version"
            raise CursorConflictError(message)
        return Witness(saved.document, saved.etag)

    def _check_still_held(self, name: str, saved: Witness, before: Witness | None) -> None:
        first = self._manifest().first_kept.position
        position = saved.cursor.position
        if position.offset >= first.offset:
            return
        # By CAS, so that a move by another process meanwhile stands. A new cursor is not deleted but put at the log's
        # first position, since another process may already rely on it.
        back = first if before is None else max(first, before.cursor.position)
        with contextlib.suppress(CursorConflictError):
            self._put(name, self._cursor(back, generation=saved.cursor.generation + 1), saved)
        message = (
            f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset};"
            f" it is now at {back.offset}: load it and continue from there, or delete it"
        )
        raise GarbageCollectedError(message)
