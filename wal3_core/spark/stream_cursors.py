"""The cursors that follow a stream: one of the same name in each log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CursorConflictError, LogNotFoundError, LogReplacedError
from wal3_core.model.cursor import Owner
from wal3_core.model.position import LogPosition
from wal3_core.options import Limits
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.planning import reader_of
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_core.model.paths import LogId
    from wal3_core.storage.documents.cursor_store import Witness

_LOGS_AT_ONCE = 16


class StreamCursors:
    """Keeps a cursor in each log of a stream, from where it begins there. They only move forwards."""

    def __init__(self, store: str, name: str) -> None:
        self._store = store
        self._name = name
        # By log and life, where its cursor is.
        self._at: dict[tuple[str, LogId], int] = {}

    def begin(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        """Create the cursors of logs that have none, at these offsets.

        InvalidRequestError for the cursor of something else.
        """
        self._each({log: place for log, place in places.items() if (log, place[0]) not in self._at})

    def commit(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        """Move the cursors to these offsets. CursorConflictError when another process moves them, too."""
        self._each(
            {log: (life, offset) for log, (life, offset) in places.items() if self._at.get((log, life), 0) < offset}
        )

    def _each(self, places: Mapping[str, tuple[LogId, int]]) -> None:
        found = map_ahead(
            shared_runtime(), self._move, [(log, *place) for log, place in places.items()], count=_LOGS_AT_ONCE
        )
        for key, at in found:
            self._at[key] = at

    def _move(self, place: tuple[str, LogId, int]) -> tuple[tuple[str, LogId], int]:
        log, log_id, offset = place
        store = open_store(self._store)
        cursors = CursorStore(store, log, log_id=log_id)
        try:
            witness = cursors.load(self._name, Owner.CONSUMER)
            if witness is None:
                witness = self._created(cursors, self._position(log, log_id, offset))
            if witness.cursor.position.offset < offset:
                witness = cursors.save(self._name, self._position(log, log_id, offset), witness, owner=Owner.CONSUMER)
        except (LogNotFoundError, LogReplacedError):
            # What the stream makes of that, its next look at the log says.
            return (log, log_id), offset
        return (log, log_id), witness.cursor.position.offset

    def _created(self, cursors: CursorStore, position: LogPosition) -> Witness:
        try:
            return cursors.init(self._name, position)
        except CursorConflictError:
            witness = cursors.load(self._name, Owner.CONSUMER)
            if witness is None:
                raise
            return witness

    def _position(self, log: str, log_id: LogId, offset: int) -> LogPosition:
        """Return the position of an offset; its time is that of the fragment it lies in."""
        reader = reader_of(open_store(self._store), log, log_id)
        manifest = reader.manifest()
        if offset >= manifest.next.position.offset:
            return manifest.next.position
        for pointer in reader.pointers(offset, Limits(fragments=1), manifest=manifest):
            return LogPosition(offset, pointer.start.timestamp_us)
        return LogPosition(offset, manifest.first.position.timestamp_us)
