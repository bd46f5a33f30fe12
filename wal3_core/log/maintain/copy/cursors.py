"""Cursors that another log takes along, with what writers' cursors say of named appends; those of a copy are moved.

Those of writers are also moved before records are appended. So from the first record on, the copy knows which appends
were begun, and searches for them where they come to lie. Source: docs/protocol.md, "Updating a copy". Keeps INV-51.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogNotFoundError
from wal3_core.format.cursor import is_writers
from wal3_core.format.named_append import NAMED_APPENDS_MAX, placed
from wal3_core.log.belongings import take_cursors
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import select
from wal3_core.log.write.staged.once import fenced
from wal3_core.options import UNLIMITED
from wal3_core.store.documents.cursor_store import CursorStore

if TYPE_CHECKING:
    from wal3_core.format.cursor import Cursor
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.position import LogPosition
    from wal3_core.log.log_stores import LogStores
    from wal3_core.store.documents.cursor_store import Witness
    from wal3_core.store.object_store import ObjectStore


def delete_cursor(store: ObjectStore, log: str, name: str) -> list[str]:
    """Delete a cursor; in successors of the log, too, where a migration has put it and its owner has not moved it.

    Return the names of these. Errors as ``CursorStore.delete``.
    """
    manifest = LogReader.open(store, log).manifest()
    CursorStore(store, log, log_id=manifest.log_id).delete(name)
    deleted: list[str] = []
    while (seal := manifest.seal) is not None and seal.successor is not None and seal.successor not in deleted:
        cursors = CursorStore(store, seal.successor)
        try:
            witness = cursors.load(name)
        except (LogNotFoundError, CorruptError):
            break
        carried = witness is not None and witness.cursor.carried_from == manifest.log_id
        if witness is None or not carried or not cursors.delete_version(name, witness):
            break
        deleted.append(seal.successor)
        manifest = LogReader.open(store, seal.successor).manifest()
    return deleted


def load_cursors(stores: LogStores, manifest: Manifest) -> dict[str, Cursor]:
    """Load a log's cursors; those of writers say where their named appends lie that they have not found yet."""

    def with_places(cursor: Cursor) -> Cursor:
        behind = select(manifest.pointers, cursor.position, UNLIMITED, stores.snapshots.load)
        return replace(cursor, appends=placed(cursor.appends, behind))

    return {name: with_places(witness.cursor) for name, witness in stores.cursors.list().items()}


def delete_retired(theirs: CursorStore, ours: CursorStore, source: Manifest) -> None:
    """Delete the cursors that came from a source, that were deleted there, and that no owner has moved here."""
    for name, held in ours.list().items():
        if held.cursor.carried_from == source.log_id and theirs.is_deleted(name):
            ours.delete_version(name, held)


class CopiedCursors:
    """The cursors of a source and of its copy; ``moved`` names those of the copy that were created or moved."""

    def __init__(self, source: LogStores, copy: LogStores) -> None:
        self._source, self._copy = source, copy
        self._ours = copy.cursors
        self.moved: set[str] = set()

    def of_writers(self, source: Manifest) -> dict[str, Cursor]:
        """Load the source's cursors of writers, as they are after a manifest of the source was loaded."""
        return {name: each for name, each in load_cursors(self._source, source).items() if is_writers(name, each)}

    def move_all(self, copied: Manifest, source: Manifest) -> None:
        """Let the copy's cursors be where the source's are, within the copy; delete those that were deleted there."""
        self.move(load_cursors(self._source, source), copied)
        delete_retired(self._source.cursors, self._ours, source)

    def move(self, cursors: dict[str, Cursor], copied: Manifest) -> None:
        """Let cursors of the copy be where these are, within the copy."""
        # What an announced collection of the copy is about to take, no cursor can keep any more.
        first, limit = copied.first_kept.position, copied.next.position
        for name, wanted in take_cursors(cursors, first, limit).items():
            if self._move(name, wanted, limit):
                self.moved.add(name)

    def _move(self, name: str, wanted: Cursor, limit: LogPosition) -> bool:
        """Move a cursor; return whether it had to be."""
        held = self._ours.load(name)
        if held is not None:
            if _is_in_use(name, held.cursor, wanted, limit):
                return False
            both = _with_begun(held.cursor, wanted)
            if len(both.appends) <= NAMED_APPENDS_MAX:
                wanted = both
            elif (held := self._rechecked(name, held, limit)) is None:
                return False
            if _content(held.cursor) == _content(wanted):
                return False
        # The name may be another cursor's by now: nothing of the old one stays.
        self._ours.carry(name, wanted, held)
        return True

    def _rechecked(self, name: str, held: Witness, limit: LogPosition) -> Witness | None:
        """Return a cursor whose appends without a place are not in the copy, nor will be; None if the copy has grown.

        What appends one of them is refused once the cursor has another version, at the copy's next fence.
        """
        held = self._ours.save(name, held.cursor.position, held)
        return held if fenced(self._copy.manifests).next.position == limit else None


def _is_in_use(name: str, held: Cursor, wanted: Cursor, limit: LogPosition) -> bool:
    """Tell whether another process has gone on with the copy, and with the cursor.

    It is beyond what was copied here; or a writer has begun an append to the copy, as a writer's cursor only moves on.
    """
    offset = held.position.offset
    return offset > limit.offset or (is_writers(name, held) and offset > wanted.position.offset)


def _with_begun(held: Cursor, wanted: Cursor) -> Cursor:
    """Keep the appends that may just begin at the same place of the copy: they would be made again.

    These may be more than a cursor can have.
    """
    if held.position != wanted.position:
        return wanted
    appends = wanted.appends
    named, newest = {each.naming for each in appends}, {each.series: each.number for each in appends if each.series}
    ours = [
        each
        for each in held.appends
        if not each.is_done and each.naming not in named and each.number > newest.get(each.series, -1)
    ]
    later = {each.series for each in ours if each.series}
    return replace(wanted, appends=(*ours, *(each for each in appends if each.series not in later)))


def _content(cursor: Cursor) -> tuple[object, ...]:
    return cursor.position, cursor.owner, cursor.pins, cursor.extension, cursor.appends, cursor.carried_from
