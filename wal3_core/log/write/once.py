"""Appends with a name, each made once however often it is repeated: what the writer's cursor and the log know of them.

The writer's cursor names its last appends. It keeps from collection and compaction what was appended since the last
one began, and an append that begins looks there for all that were not found yet. So of each that the cursor names it is
known whether the log has it, until the next manifest that a CAS replaces.
Source: docs/protocol/staged.md, "Appends with a name". Keeps INV-51.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from wal3_core.arguments import flag, integer, make_plain, text
from wal3_core.errors import CursorConflictError, InvalidRequestError, NotDurableError, UnknownDurabilityError
from wal3_core.format.cursor import Owner
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.named_append import (
    NAMED_APPENDS_MAX,
    NAMING_DIGITS,
    SERIES_LENGTH_MAX,
    NamedAppend,
    begun,
    forgotten,
    placed,
)
from wal3_core.format.paths import check_writer_cursor_name
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore


@dataclass(frozen=True, slots=True)
class Once:
    """Names an append: the ``cursor`` of who repeats it, one name for each source of appends, and the append's own.

    The cursor's name begins with ``writer-``: what lies behind such a cursor keeps its paths.

    An append may have a ``number`` in a ``series``: who begins one has made all with lower numbers. Then none of these
    is made again, however old it is, as long as the cursor has no 16 newer series. With ``same_rows``, an append that
    the log has is refused if its records are others now; without, they are left out with a warning.
    """

    cursor: str
    append: str
    series: str = ""
    number: int = 0
    same_rows: bool = True

    def __post_init__(self) -> None:
        """Refuse names that no cursor can have, or say."""
        make_plain(self, cursor=check_writer_cursor_name, append=text, series=text, number=integer, same_rows=flag)
        if len(self.series) > SERIES_LENGTH_MAX or not 0 <= self.number <= U64_MAX:
            raise InvalidRequestError(
                f"append {self.append[:80]!r}: expected a series of at most {SERIES_LENGTH_MAX} characters and a number"
                f" within u64, found {len(self.series)} characters and {self.number}"
            )

    def begin(self) -> NamedAppend:
        """Return it as it begins. Its fragments' tokens begin the same in each copy of the log, whatever its name."""
        # As of a log without a name, so that it is no naming of an earlier version's.
        number = self.number if self.series else 0
        return NamedAppend(naming=self.naming_in(""), series=self.series, number=number)

    def naming_in(self, log: str) -> str:
        """Return how earlier versions named it in the log of a name, which they may have begun it in."""
        return hashlib.sha256(f"{log}/{self.cursor}/{self.append}".encode()).hexdigest()[:NAMING_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The writer's cursor, as the append that is under way left it; ``append`` says whether it is done."""

    append: NamedAppend
    witness: Witness


class IdempotentAppend:
    """One append with a name, in one life of a log."""

    def __init__(
        self, once: Once, log: str, manifests: ManifestStore, snapshots: SnapshotStore, cursors: CursorStore
    ) -> None:
        self.once = once
        self._new = once.begin()
        self._namings = {self._new.naming, once.naming_in(log)}
        self._manifests = manifests
        self._snapshots = snapshots
        self._cursors = cursors
        self._what = f"log {manifests.url}: cursor {once.cursor}"

    def begin(self, staged: int) -> Kept:
        """Have the cursor name the append, and keep what is about to be appended, unless it is done.

        ``staged`` is where the log ended when the first of it was staged. UnknownDurabilityError when the cursor's
        writer has gone on to other appends, and whether this one was made before them is not known.
        """
        witness = self._load()
        if witness is None:
            with contextlib.suppress(CursorConflictError):
                end = self._manifests.load().manifest.next.position
                new = self._cursors.create(self.once.cursor, end, owner=Owner.WRITER)
                witness = self._save(end, new, (self._new,))
                return Kept(append=self._new, witness=witness)
            # Another process begins an append of the writer just now.
            witness = self._load()
            if witness is None:
                raise CursorConflictError(f"{self._what}: expected it to stay, found it deleted")
        return self._go_on(witness, staged)

    def _load(self) -> Witness | None:
        """Load the writer's cursor; refuse that of one that reads by this name: it would pass over what is unread."""
        try:
            return self._cursors.load(self.once.cursor, Owner.WRITER)
        except InvalidRequestError as error:
            raise NotDurableError(str(error)) from error

    def _go_on(self, witness: Witness, staged: int) -> Kept:
        manifest, before = self._manifests.load().manifest, witness.cursor.appends
        # If an older manifest was restored, the log lacks some that the cursor has found.
        held = tuple(each.within(manifest.next.position.offset) for each in before)
        named = next(filter(self._is_this, held), None)
        append = named or self._new
        self._check_number(append)
        appends = placed(held if named else (*held, append), self._since(manifest, witness))
        append = next(each for each in appends if each.naming == append.naming)
        if append.is_done:
            return Kept(append=append, witness=witness)
        self._check_newest(appends)
        if named is None:
            self._check_staged(witness, staged, manifest)
            self._check_room(appends)
        if forgotten(appends, append) and any(not (each.series or each.is_done or each is append) for each in appends):
            return self._go_on(self._resolved(witness), staged)
        appends, end = begun(appends, append), manifest.next.position
        if (end.offset, appends) != (witness.cursor.position.offset, before):
            witness = self._save(end, witness, appends)
        return Kept(append=append, witness=witness)

    def _resolved(self, witness: Witness) -> Witness:
        """Forget the appends without a series that are not in the log, nor will be.

        Who appends one of them has looked at the cursor's version, and is refused at the manifest's next fence.
        """
        position = witness.cursor.position
        witness = self._save(position, witness, witness.cursor.appends)
        manifest = fenced(self._manifests)
        held = (each.within(manifest.next.position.offset) for each in witness.cursor.appends)
        appends = placed(held, self._since(manifest, witness))
        return self._save(position, witness, tuple(each for each in appends if each.is_done or each.series))

    def _check_room(self, appends: tuple[NamedAppend, ...]) -> None:
        """Refuse an append without a series if all that the cursor can name are of series: none is forgotten for it."""
        if not self._new.series and sum(bool(each.series) for each in appends) >= NAMED_APPENDS_MAX:
            raise NotDurableError(
                f"{self._what}: append {self.once.append[:80]!r}: expected one of a series, as the cursor names appends"
                f" of {NAMED_APPENDS_MAX} series, found one without: give it a series and a number, or give its"
                f" writer another name"
            )

    def _check_number(self, append: NamedAppend) -> None:
        """Refuse one with the name of another of a series: it is neither a repeated one nor a new one."""
        found, new = (append.series, append.number), (self._new.series, self._new.number)
        if found != new and append.series and new[0]:
            raise NotDurableError(
                f"{self._what}: append {self.once.append[:80]!r}: expected number {found[1]} of {found[0]}, which has"
                f" this name, found number {new[1]} of {new[0]}: give each append a name of its own"
            )

    def _save(self, end: LogPosition, witness: Witness, appends: tuple[NamedAppend, ...]) -> Witness:
        named = replace(witness, cursor=replace(witness.cursor, appends=appends))
        return self._cursors.save(self.once.cursor, end, named, owner=Owner.WRITER)

    def _is_this(self, other: NamedAppend) -> bool:
        """Tell whether the cursor names it; what an earlier version began may have another naming in a copy."""
        new = self._new
        return other.naming in self._namings or (
            bool(new.series) and (other.series, other.number) == (new.series, new.number)
        )

    def _check_newest(self, appends: tuple[NamedAppend, ...]) -> None:
        """Refuse an append of a series in which a later one began: it was made before that."""
        new = self._new
        later = [each.number for each in appends if new.series and each.series == new.series]
        if later and max(later) > new.number:
            raise UnknownDurabilityError(
                f"{self._what}: expected number {max(later)} of {new.series}, which began, or a later one, found number"
                f" {new.number}, which was made before that: if another process goes on with {new.series}, end this"
                f" one; if this one was put back to an older state, begin a new series, or delete the cursor to have"
                f" it append again"
            )

    def _check_staged(self, witness: Witness, staged: int, manifest: Manifest) -> None:
        """Refuse an append that was staged before the writer's last one began: it may have been made before that."""
        since = min(witness.cursor.position.offset, manifest.next.position.offset)
        if staged < since:
            raise UnknownDurabilityError(
                f"{self._what}: expected it at {staged} or before, where the log ended when this was staged, found it"
                f" at {since}: another append of the writer began since, and whether the log had this one"
                f" before is not known: if it was not made, stage it again"
            )

    def find(self, manifest: Manifest, kept: Kept) -> NamedAppend | None:
        """Return the append's place, if the log has it."""
        if kept.append.is_done:
            return kept.append
        (found,) = placed((kept.append,), self._since(manifest, kept.witness))
        return found if found.is_done else None

    def _since(self, manifest: Manifest, witness: Witness) -> Iterator[FragmentPointer]:
        return select(manifest.pointers, witness.cursor.position, UNLIMITED, self._snapshots.load)

    def check_kept(self, kept: Kept) -> None:
        """Refuse to append if another process has moved the cursor: the manifest may lack an append that was made."""
        found = self._cursors.load(self.once.cursor)
        if found is None or found.etag != kept.witness.etag:
            at, place = kept.witness.cursor.position.offset, None if found is None else found.cursor.position.offset
            raise UnknownDurabilityError(
                f"{self._what}: expected it at {at}, where this append put it, found it"
                f" {'deleted' if place is None else f'at {place}'}: another process repeats this append, or has made"
                f" it; repeat it"
            )


def fenced(manifests: ManifestStore) -> Manifest:
    """Move the log's fence; return a manifest that has all that began under the fence before, and is ever committed."""
    base = manifests.load()
    fence = base.manifest.fence
    manifests.change(base, lambda found: found.move_fence() if found.fence == fence else None)
    return manifests.load().manifest
