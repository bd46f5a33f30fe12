"""Cursors on storage: created, moved and deleted by CAS, moved with a witness.

Whoever creates a cursor, or moves one back, writes it first and looks at the manifest afterwards: a
log that no longer holds the position means that it came too late, and the cursor is put back.
Source: docs/protocol.md, "Cursors".
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
from wal3_core.model.strict_json import U64_MAX
from wal3_core.options import CURSORS_AHEAD, RetryOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.storage.documents.manifest_store import Installed, ManifestStore
from wal3_core.storage.documents.named_store import NamedStore
from wal3_core.storage.object_store import Etag, ObjectStore, log_store, share_of
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.storage.documents.document_store import Seen


@dataclass(frozen=True, slots=True)
class Witness:
    """A cursor as it was seen: what a move starts from."""

    cursor: Cursor
    etag: Etag

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, cursor=instance_of(Cursor), etag=text)


class CursorStore:
    """The cursors of one life of a log: that of ``log_id``, or else the one that is found first.

    LogReplacedError when the log's name has come to lead to another one.
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
        # The versions that are known to be held, by name: a collection keeps what lies at and after them.
        self._held: dict[str, Etag] = {}

    @checked(name=check_cursor_name, position=instance_of(LogPosition))
    def init(self, name: str, position: LogPosition) -> Witness:
        """Create a cursor; CursorConflictError when it exists.

        GarbageCollectedError when the position is gone: the cursor then lies at the log's first place.
        """
        self._check_position(name, position)
        witness = self._create(name, position)
        try:
            self._check_still_held(name, witness, None)
        except (LogReplacedError, LogNotFoundError):
            # Of a life that is over: nobody has come to rely on it.
            self._store.delete(cursor_path(name))
            raise
        self._held[name] = witness.etag
        return witness

    @checked(name=check_cursor_name)
    def load(self, name: str) -> Witness | None:
        """Load a cursor; None when there is none of that name."""
        seen = self._cursors.load(cursor_path(name))
        if seen is None:
            # None at all, or none any more, because the log is gone.
            self._manifest()
            return None
        return Witness(seen.document, seen.etag)

    @checked(name=check_cursor_name, position=instance_of(LogPosition), witness=instance_of(Witness))
    def save(self, name: str, position: LogPosition, witness: Witness) -> Witness:
        """Move a cursor from where the witness saw it; CursorConflictError when it is elsewhere by now.

        Moving back, or on from a place that this store did not check, looks whether the log still holds the
        position, and raises GarbageCollectedError, with the cursor back where it was, when it does not.
        """
        self._check_position(name, position)
        if witness.cursor.log_id != self._manifests.log_id():
            message = (
                f"cursor {name}: expected one of log {self._manifests.log_id()}, found one of log"
                f" {witness.cursor.log_id}, which had this name before: load it again"
            )
            raise LogReplacedError(message)
        moved = self._cursor(position, generation=witness.cursor.generation + 1)
        saved = self._put(name, moved, witness)
        # Whoever moved it there may have died before it looked.
        if self._held.get(name) != witness.etag or position.offset < witness.cursor.position.offset:
            self._check_still_held(name, saved, witness)
        self._held[name] = saved.etag
        return saved

    def list(self) -> dict[str, Witness]:
        """Load all cursors by name; CorruptError for a file that is none."""
        found = {}
        for path, witness in self.survey():
            if isinstance(witness, CorruptError):
                raise witness
            found[cursor_name(path)] = witness
        return found

    def offsets(self) -> dict[str, int]:
        """Load where all cursors lie, by name; CorruptError for a file that is none.

        Of the life that was found first, whatever has become of it: a collector learns that from its CAS.
        """
        found = {}
        for path, witness in self._survey():
            if isinstance(witness, CorruptError):
                raise witness
            found[cursor_name(path)] = witness.cursor.position.offset
        return found

    def survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        """Go through the cursors by path, some loaded ahead; one that can not be read is an error in its place."""
        yield from self._survey()
        # None of them may be there any more because the log is gone.
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
        """Remove a cursor: what it pinned may be collected. Its name may be used again at once.

        Its object stays, some 250 bytes, as long as the log. UnavailableError when it is not known to be removed.
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
        # The log's end never moves back: what lay before it still does.
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
            message = f"cursor {self._store.url}/{cursor_path(name)}: expected {expected}, found another version"
            raise CursorConflictError(message)
        return Witness(saved.document, saved.etag)

    def _check_still_held(self, name: str, saved: Witness, before: Witness | None) -> None:
        first = self._manifest().first_kept.position
        position = saved.cursor.position
        if position.offset >= first.offset:
            return
        # By CAS: whoever moved the cursor on meanwhile keeps it. And no delete: a new cursor stays at the log's first
        # place, for somebody may have come to rely on it.
        back = first if before is None else max(first, before.cursor.position)
        with contextlib.suppress(CursorConflictError):
            self._put(name, self._cursor(back, generation=saved.cursor.generation + 1), saved)
        message = (
            f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset};"
            f" it lies at {back.offset} now: load it and go on from there, or delete it"
        )
        raise GarbageCollectedError(message)
