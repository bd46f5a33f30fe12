"""Cursors on storage: created once, moved by CAS with a witness.

Whoever creates a cursor, or moves one back, writes it first and looks at the manifest afterwards: a
log that no longer holds the position means that it came too late, and the cursor is put back.
Source: docs/protocol.md, "Cursors".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
)
from wal3_core.model.cursor import Cursor
from wal3_core.model.paths import CURSOR_FOLDER, check_cursor_name, cursor_name, cursor_path
from wal3_core.model.strict_json import U64_MAX
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.storage.document_store import DocumentStore, Seen
from wal3_core.storage.manifest_store import Installed, ManifestStore
from wal3_core.storage.object_store import Etag, ObjectStore, log_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import LogPosition


@dataclass(frozen=True, slots=True)
class Witness:
    """A cursor as it was seen: what a move starts from."""

    cursor: Cursor
    etag: Etag


class CursorStore:
    """The cursors of one log."""

    def __init__(
        self, store: ObjectStore, log: str, *, runtime: Runtime | None = None, retry: RetryOptions | None = None
    ) -> None:
        self._store = log_store(store, log)
        self._runtime = runtime or shared_runtime()
        retry = retry or RetryOptions()
        self._manifests = ManifestStore(self._store, self._runtime, retry)
        self._documents = DocumentStore(
            self._store, self._runtime, retry, lambda data, what: Cursor.from_bytes(data, what=what)
        )
        self._known: Installed | None = None
        # The versions that are known to be held, by name: a collection keeps what lies at and after them.
        self._held: dict[str, Etag] = {}

    def init(self, name: str, position: LogPosition) -> Witness:
        """Create a cursor; CursorConflictError when it exists.

        GarbageCollectedError when the position is gone: the cursor then lies at the log's first place.
        """
        self._check_position(name, position)
        witness = self._put(name, self._cursor(position, generation=1), None)
        self._check_still_held(name, witness, None)
        self._held[name] = witness.etag
        return witness

    def load(self, name: str) -> Witness | None:
        """Load a cursor; None when there is none of that name."""
        seen = self._documents.load(cursor_path(name))
        return None if seen is None else Witness(seen.document, seen.etag)

    def save(self, name: str, position: LogPosition, witness: Witness) -> Witness:
        """Move a cursor from where the witness saw it; CursorConflictError when it is elsewhere by now.

        Moving back, or on from a place that this store did not check, looks whether the log still holds the
        position, and raises GarbageCollectedError, with the cursor back where it was, when it does not.
        """
        self._check_position(name, position)
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
        """Load where all cursors lie, by name; CorruptError for a file that is none."""
        return {name: witness.cursor.position.offset for name, witness in self.list().items()}

    def survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        """Go through the cursors by path; one that can not be read is an error in its place."""
        for meta in self._store.list_objects(CURSOR_FOLDER):
            try:
                witness = self.load(cursor_name(meta.path))
            except CorruptError as error:
                yield meta.path, error
                continue
            if witness is not None:
                yield meta.path, witness

    def delete(self, name: str) -> None:
        """Remove a cursor: what it pinned may be collected."""
        self._store.delete(cursor_path(name))

    def _cursor(self, position: LogPosition, *, generation: int) -> Cursor:
        return Cursor(
            position=position,
            epoch_us=self._runtime.now_us(),
            # The token makes the document this save's own: another's is never taken for it.
            writer=f"{self._runtime.process_name()} {self._runtime.token()}",
            generation=generation,
        )

    def _check_position(self, name: str, position: LogPosition) -> None:
        check_cursor_name(name)
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

    def _put(self, name: str, cursor: Cursor, witness: Witness | None) -> Witness:
        seen = None if witness is None else Seen(witness.cursor, witness.etag)
        saved = self._documents.save(cursor_path(name), cursor, seen)
        if saved is None:
            expected = "no cursor" if witness is None else f"generation {witness.cursor.generation}"
            message = f"cursor {self._store.url}/{cursor_path(name)}: expected {expected}, found another version"
            raise CursorConflictError(message)
        return Witness(saved.document, saved.etag)

    def _check_still_held(self, name: str, saved: Witness, before: Witness | None) -> None:
        first = self._manifest().first_kept.position
        position = saved.cursor.position
        if position.offset >= first.offset:
            return
        # By CAS: whoever moved the cursor on meanwhile keeps it. And no delete, which knows no versions: a new cursor
        # stays at the log's first place, for somebody may have come to rely on it.
        back = first if before is None else max(first, before.cursor.position)
        with contextlib.suppress(CursorConflictError):
            self._put(name, self._cursor(back, generation=saved.cursor.generation + 1), saved)
        message = (
            f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset};"
            f" it lies at {back.offset} now: load it and go on from there, or delete it"
        )
        raise GarbageCollectedError(message)
