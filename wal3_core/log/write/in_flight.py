"""Fragments in flight: their places, their upload, and what the log takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import SealedError, ViewRequiredError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import TAG_DIGITS, Boundary, Epoch
from wal3_core.format.parquet import FragmentSource, encode
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.log.write.columns import join
from wal3_core.log.write.commit import WriterTerm
from wal3_core.store.documents.document_store import write_immutable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wal3_core.format.manifest import Manifest, Seal
    from wal3_core.format.parquet.encoding import EncodedFragment
    from wal3_core.log.write.batch import Append
    from wal3_core.log.write.log_clock import LogClock
    from wal3_core.log.write.stats import Meter
    from wal3_core.options import RetryOptions, View
    from wal3_core.runtime import Runtime
    from wal3_core.store.documents.manifest_store import Installed
    from wal3_core.store.object_store import ObjectStore


def pointer_to(
    encoded: EncodedFragment, seq_no: FragmentSeqNo, token: str, start: LogPosition, num_records: int
) -> FragmentPointer:
    """Return the pointer to a fragment whose records have adjacent offsets, and one time."""
    return FragmentPointer(
        path=fragment_path(seq_no, token),
        first_seq_no=seq_no,
        seq_no=seq_no,
        start=start,
        limit=LogPosition(start.offset + num_records, start.timestamp_us),
        setsum=encoded.setsum,
        num_bytes=len(encoded.data),
        num_records=num_records,
    )


def sealed_error(url: str, seal: Seal) -> SealedError:
    """Return the error of a log that takes no more appends."""
    successor = f"; it goes on in {seal.successor}" if seal.successor else ""
    return SealedError(
        f"log {url}: sealed by {seal.sealed_by}: {seal.reason}{successor}", successor=seal.successor or ""
    )


def view_required(url: str, owner: View | None, found: View | None) -> ViewRequiredError:
    """Return the error of a log that takes appends of one view alone."""
    message = (
        f"log {url}: expected an append of the view {owner}, found one of {found or 'none'}: the policy says whose the"
        f" log is: append as that view does, to another log, or change the policy (`wal3 policy LOG --no-view`)"
    )
    return ViewRequiredError(message)


@dataclass(slots=True, eq=False)
class InFlightFragment:
    """A fragment in flight: uploading until it has a pointer or an error."""

    appends: list[Append]
    start: LogPosition
    seq_no: FragmentSeqNo
    term: WriterTerm
    pointer: FragmentPointer | None = None
    error: BaseException | None = None
    mark: Future[None] | None = None
    # The end of its appends' wait for the mark, once it is committed.
    mark_until_s: float = 0.0

    @property
    def num_records(self) -> int:
        """How many records it holds."""
        return sum(append.columns.num_records for append in self.appends)

    @property
    def oldest_s(self) -> float:
        """When its first append was accepted."""
        return self.appends[0].accepted_s

    @property
    def keyless(self) -> bool:
        """Whether a record has no key, so that a keyed log does not take it."""
        return any(append.columns.keyless for append in self.appends)

    def upload(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime, meter: Meter) -> None:
        """Encode the fragment and make it durable; a failure is kept as its ``error``."""
        began_s = runtime.monotonic_s()
        try:
            columns, token = join([append.columns for append in self.appends]), self.term.epoch.token
            encoded = encode(
                FragmentSource(
                    start=self.start, seq_no=self.seq_no, token=token, keys=columns.keys, bodies=columns.bodies
                )
            )
            pointer = pointer_to(encoded, self.seq_no, token, self.start, columns.num_records)
            # Fragment first: an orphan is garbage, a dangling pointer is loss.
            write_immutable(store, pointer.path, encoded.data, retry, runtime, meter.retried)
            self.pointer = pointer
            meter.upload_took(runtime.monotonic_s() - began_s)
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            self.error = error


class WritePosition:
    """The manifest that a writer builds on, its writer term, and its next place. Guarded by its owner's lock."""

    def __init__(self, base: Installed | None, runtime: Runtime, clock: LogClock, view: View | None = None) -> None:
        self._view = view
        self._runtime = runtime
        self._clock = clock
        # Its tokens begin with these digits: by them, writers that take turns know each other.
        self.tag = runtime.token()[:TAG_DIGITS]
        # None when its state is unknown: it has to be loaded.
        self.base: Installed | None = None
        # Where the log ended in the newest manifest seen so far; None before there was one.
        self.next_offset: int | None = None
        # Set if that manifest took only records with keys.
        self.keyed = False
        # The view that this manifest belongs to, unless it is the writer's own.
        self.other_view: View | None = None
        # ``base`` was the newest manifest at some time at or after this.
        self.seen_s = -math.inf
        self._term: WriterTerm | None = None
        self._place: Boundary | None = None
        if base is not None:
            # It was loaded before: how long ago is not known here.
            self.begin_term(base, -math.inf)

    @property
    def seal(self) -> Seal | None:
        """How the log was sealed, as far as this writer knows."""
        return None if self.base is None else self.base.manifest.seal

    @property
    def offset(self) -> int:
        """Where the next record lands if everything in flight is committed."""
        assert self._place is not None
        return self._place.position.offset

    def go_on(self, base: Installed, seen_s: float) -> None:
        """Adopt the manifest of this writer's own commit; places that were given out stay."""
        self.base, self.seen_s = base, seen_s
        self._take_terms(base.manifest)

    def _take_terms(self, manifest: Manifest) -> None:
        self.next_offset, self.keyed = manifest.next.position.offset, manifest.keyed
        self.other_view = None if manifest.is_of(self._view) else manifest.view

    def refuses(self, append: Append) -> bool:
        """Whether that manifest takes no such append."""
        return self.other_view is not None or (self.keyed and append.columns.keyless)

    def confirm(self, base: Installed, seen_s: float) -> None:
        """Adopt a manifest while nothing is in flight: the next place is where it ends."""
        if self.base is not None and self.base.etag == base.etag and self._place == base.manifest.next:
            self.seen_s = seen_s
        else:
            self.begin_term(base, seen_s)

    def begin_term(self, base: Installed, seen_s: float) -> None:
        """Build on a manifest as a new epoch, under a new token: paths of the old one are not used again."""
        manifest = base.manifest
        token = self.tag + self._runtime.token()[TAG_DIGITS:]
        epoch = Epoch(manifest.last_epoch + 1, token, manifest.next.seq_no)
        self.base, self.seen_s, self._place = base, seen_s, manifest.next
        self._take_terms(manifest)
        self._term = WriterTerm(epoch, manifest.fence)

    def place(self, appends: list[Append]) -> InFlightFragment:
        """Give appends their places: the next fragment."""
        assert self._place is not None
        assert self._term is not None
        count = sum(append.columns.num_records for append in appends)
        before = self._place.position
        start = LogPosition(before.offset, max(self._clock.now_us(), before.timestamp_us))
        flight = InFlightFragment(appends, start, self._place.seq_no, self._term)
        self._place = Boundary(FragmentSeqNo(flight.seq_no + 1), LogPosition(start.offset + count, start.timestamp_us))
        return flight
