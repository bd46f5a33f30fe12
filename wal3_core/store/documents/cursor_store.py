"""Cursors on storage: created, moved and deleted by CAS, moved with a witness.

A cursor that is created or moved back is written first; then the manifest is read. If the log no longer
holds the position, the write came too late, and the cursor is put back. Source: docs/protocol/collection.md, "Cursors".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from wal3_core.arguments import checked, flag, instance_of, make_plain, optional, text
from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogNotFoundError,
    LogReplacedError,
    StoreDeniedError,
)
from wal3_core.format.cursor import BYTES_MAX, NO_EXTENSION, Cursor, Extension, Owner, is_writers
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CURSOR_FOLDER, NO_LOG, WRITER_CURSOR, check_cursor_name, cursor_name, cursor_path
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record, position_after
from wal3_core.format.strict_json import U64_MAX
from wal3_core.format.tombstone import Tombstone
from wal3_core.options import CURSORS_AHEAD
from wal3_core.runtime import wall_us
from wal3_core.store.documents.document_store import LoadedDocument
from wal3_core.store.documents.manifest_store import Installed, LifeStore
from wal3_core.store.documents.named_store import NamedStore
from wal3_core.store.object_store import Etag, object_url
from wal3_core.store.retrying import attempts, for_store


@dataclass(frozen=True, slots=True)
class Witness:
    """A cursor as it was loaded, with its version: what a move must still find."""

    cursor: Cursor
    etag: Etag

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, cursor=instance_of(Cursor), etag=text)


class CursorStore(LifeStore):
    """The cursors of one life of a log: that of ``log_id``, or else the first one found.

    LogReplacedError when the log's name now leads to another log.
    """

    def _open(self) -> None:
        self._cursors = NamedStore(self._manifests, self._runtime, self._retry, Cursor.from_fields, bytes_max=BYTES_MAX)
        self._known: Installed | None = None
        # By name, the versions whose position was checked to be held: a collection keeps everything from there on.
        self._held: dict[str, Etag] = {}

    @checked(
        name=check_cursor_name,
        position=instance_of(LogPosition, Record),
        owner=optional(instance_of(Owner)),
        pins=flag,
        extension=instance_of(Extension),
        stays=flag,
    )
    def create(
        self,
        name: str,
        position: LogPosition | Record,
        *,
        owner: Owner | None = Owner.CONSUMER,
        pins: bool = True,
        extension: Extension = NO_EXTENSION,
        stays: bool = True,
    ) -> Witness:
        """Create a cursor for an owner, or None for the first that uses it; CursorConflictError when it exists.

        A record as the position means that it is processed: the cursor is at the offset after it.
        GarbageCollectedError when the position is gone: the cursor is then at the log's first position, or deleted
        unless it ``stays``. One that does not ``pin`` keeps no records. InvalidRequestError for the name of a writer's
        cursor and another owner.
        """
        if name.startswith(WRITER_CURSOR) and owner is not Owner.WRITER:
            message = f"cursor {name}: expected a name that does not begin with {WRITER_CURSOR}, as writers' do"
            raise InvalidRequestError(message)
        cursor = Cursor(
            position=_after(position), epoch_us=0, generation=0, owner=owner, pins=pins, extension=extension
        )
        return self.carry(name, cursor, None, stays=stays)

    @checked(name=check_cursor_name, owner=optional(instance_of(Owner)))
    def load(self, name: str, owner: Owner | None = None) -> Witness | None:
        """Load a cursor; None when there is none of that name, InvalidRequestError when another kind of owner has it.

        Without an ``owner``, any cursor is loaded.
        """
        seen = self._cursors.load(cursor_path(name))
        if seen is None:
            # Perhaps because the log is gone: that is an error.
            self._manifest()
            return None
        if owner is not None:
            seen.document.check_owner(owner, f"log {self._manifests.url}, cursor {name}")
        return Witness(seen.document, seen.etag)

    @checked(
        name=check_cursor_name,
        position=instance_of(LogPosition, Record),
        witness=instance_of(Witness),
        owner=optional(instance_of(Owner)),
        extension=optional(instance_of(Extension)),
    )
    def save(
        self,
        name: str,
        position: LogPosition | Record,
        witness: Witness,
        *,
        owner: Owner | None = None,
        extension: Extension | None = None,
    ) -> Witness:
        """Move a cursor from the witness's version; CursorConflictError when it has another version.

        A record as the position means that it is processed: the cursor moves to the offset after it.
        A move backwards, or from a version that this store did not check, checks that the log still holds the
        position; if not, it raises GarbageCollectedError, with the cursor back where it was.
        InvalidRequestError when the cursor has another kind of ``owner``. Without an owner, an operator moves it: it
        stays its owner's, who finds nothing processed ahead of it. The ``appends`` of a writer are those of the
        witness.
        """
        before, log_id = witness.cursor, self._manifests.log_id()
        if before.log_id != log_id:
            raise LogReplacedError(
                f"cursor {name}: expected one of log {log_id}, found one of log {before.log_id}, which had this name"
                f" before: load it again"
            )
        if owner is not None:
            before.check_owner(owner, f"log {self._manifests.url}, cursor {name}")
        kept = before.extension.behind if extension is None else extension
        moved = replace(
            before, position=_after(position), owner=owner or before.owner, extension=kept, carried_from=NO_LOG
        )
        return self.carry(name, moved, witness)

    @checked(name=check_cursor_name, cursor=instance_of(Cursor), witness=optional(instance_of(Witness)), stays=flag)
    def carry(self, name: str, cursor: Cursor, witness: Witness | None, *, stays: bool = True) -> Witness:
        """Write a whole cursor, such as another log's, in place of the witness's version, or of none.

        Errors, and ``stays``, as of ``create`` and ``save``.
        """
        self._check_position(name, cursor)
        before = None if witness is None else witness.cursor
        generation = 0 if before is None else before.generation + 1
        cursor = replace(cursor, generation=generation, epoch_us=wall_us(self._runtime))
        saved = self._create(name, cursor) if witness is None else self._put(name, cursor, witness)
        is_new_place = before is None or cursor.position.offset < before.position.offset
        try:
            # The process that moved it there before may have died before its check.
            if is_new_place or self._held.get(name) != (witness and witness.etag):
                self._check_still_held(name, saved, witness, stays=stays)
        except (LogReplacedError, LogNotFoundError):
            if witness is None:
                # It belongs to a life that is over, so nothing relies on it.
                self._store.delete(cursor_path(name))
            raise
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

    @checked(writers_alone=flag)
    def offsets(self, *, writers_alone: bool = False) -> dict[str, int]:
        """Load the offsets of all cursors that keep records, by name; CorruptError for a file that is no cursor.

        ``writers_alone``: of those of writers that repeat appends, which also keep paths.

        Does not check that the log still exists: a collector learns that from its CAS.
        """
        found = {}
        for path, witness in self._survey():
            if isinstance(witness, CorruptError):
                raise witness
            name, cursor = cursor_name(path), witness.cursor
            if cursor.pins and (not writers_alone or is_writers(name, cursor)):
                found[name] = cursor.position.offset
        return found

    def survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        """Yield the cursors by path, some loaded ahead; for an unreadable one its error."""
        yield from self._survey()
        # Cursors may be missing because the log is gone: that is an error.
        self._manifest()

    def _survey(self) -> Iterator[tuple[str, Witness | CorruptError]]:
        for path, seen in self._cursors.list(CURSOR_FOLDER, cursor_name, ahead=CURSORS_AHEAD):
            yield path, seen if isinstance(seen, CorruptError) else Witness(seen.document, seen.etag)

    @checked(name=check_cursor_name)
    def delete(self, name: str) -> None:
        """Delete a cursor: the records it kept can be collected. Its name can be used again at once.

        A tombstone of some 250 bytes stays as long as the log. UnavailableError when it is undetermined whether the
        cursor was deleted.
        """
        self._manifest()
        self._cursors.delete(cursor_path(name))

    @checked(name=check_cursor_name)
    def is_deleted(self, name: str) -> bool:
        """Tell whether there was a cursor of that name, and it was deleted."""
        seen = self._cursors.look(cursor_path(name))
        return seen is not None and isinstance(seen.document, Tombstone)

    @checked(name=check_cursor_name, witness=instance_of(Witness))
    def delete_version(self, name: str, witness: Witness) -> bool:
        """Delete a cursor as the witness has it; False, and nothing done, when it has another version."""
        return self._cursors.delete_version(cursor_path(name), LoadedDocument(witness.cursor, witness.etag))

    def _check_position(self, name: str, cursor: Cursor) -> None:
        # The log's end never moves back, so an offset below a known end is valid.
        known = None if self._known is None else self._known.manifest
        furthest = max(cursor.position.offset, cursor.extension.limit)
        if known is None or furthest > known.next.position.offset:
            known = self._manifest()
        _check_range(name, cursor.position, furthest, known.next.position)

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

    def _saved(self, name: str, saved: LoadedDocument[Cursor] | None, expected: str) -> Witness:
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
            return manifest.withdraw_compaction() if above else None

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

    def _check_still_held(self, name: str, saved: Witness, before: Witness | None, *, stays: bool) -> None:
        first = self._manifest().first_kept.position
        position = saved.cursor.position
        if not saved.cursor.pins:
            return
        if position.offset >= first.offset:
            self._withdraw_compaction(position)
            return
        if not stays and self.delete_version(name, saved):
            # Left anywhere, its owner would begin there, and miss what it was to get before that.
            message = f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset}"
            raise GarbageCollectedError(message)
        # By CAS, so that a move by another process meanwhile stands. A new cursor is not deleted but put at the log's
        # first position, since another process may already rely on it.
        back = first if before is None else max(first, before.cursor.position)
        with contextlib.suppress(CursorConflictError):
            found, generation = saved.cursor, saved.cursor.generation + 1
            put_back = replace(found, position=back, generation=generation, extension=found.extension.behind)
            self._put(name, put_back, saved)
            # Like any cursor that was moved back: a pass may have read the cursors before.
            self._manifest()
            self._withdraw_compaction(back)
        raise GarbageCollectedError(
            f"cursor {name}: expected an offset the log holds, from {first.offset}, found {position.offset};"
            f" it is now at {back.offset}: load it and continue from there, or delete it"
        )


def _after(position: LogPosition | Record) -> LogPosition:
    """Return where a cursor is that was given a position, or a record that is processed."""
    return position_after(position) if isinstance(position, Record) else position


def _check_range(name: str, position: LogPosition, furthest: int, limit: LogPosition) -> None:
    if position.offset < 1 or furthest > limit.offset:
        # Beyond the end, it would skip what is appended there.
        found = position.offset if position.offset < 1 else furthest
        raise InvalidRequestError(f"cursor {name}: expected an offset from 1 to {limit.offset}, found {found}")
    if not 0 <= position.timestamp_us <= U64_MAX:
        raise InvalidRequestError(f"cursor {name}: expected a timestamp within u64, found {position.timestamp_us}")
