"""A subscription's cursor: where it is created, and how acknowledgements of several processes come together.

The floor and what is acknowledged above it are one document, replaced by CAS: no crash leaves one without the other.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import (
    CorruptError,
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    UnavailableError,
)
from wal3_core.model import strict_json
from wal3_core.model.cursor import Owner
from wal3_core.model.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.model.position import AtTime, LogPosition
from wal3_core.options import Limits
from wal3_core.views.feed.feed_reader import begun_at
from wal3_core.views.feed.messages import FeedMessage, message_of
from wal3_core.views.feed.subscribed import Progress, Subscribed
from wal3_core.views.feed.topics import TopicFilter

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.runtime import Lock, Runtime, Timer
    from wal3_core.storage.documents.cursor_store import CursorStore, Witness
    from wal3_core.views.feed.outstanding import Outstanding
    from wal3_core.views.feed.subscribed import SubscriptionOptions
    from wal3_core.views.feed.tail import Tail
    from wal3_core.views.feed.topics import Pattern

# The rest of a cursor's document is for what is acknowledged: 2,000 ranges of two numbers.
_TOPICS_BYTES_MAX = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller wants a subscription to be."""

    log: str
    name: str
    start: str | int | AtTime
    topics: tuple[Pattern, ...]
    pins: bool
    token: str


class SavedSubscription:
    """The cursor of one subscription, as this process saved or found it last."""

    def __init__(self, cursors: CursorStore, wanted: Wanted, witness: Witness) -> None:
        self._cursors = cursors
        self._wanted = wanted
        self._found(witness)
        self._token = self.state.token

    def _found(self, witness: Witness) -> None:
        self.witness = witness
        # What was saved or found last.
        self.state = _subscribed(witness, self._wanted)

    @classmethod
    def open(cls, cursors: CursorStore, tail: Tail, wanted: Wanted) -> SavedSubscription:
        """Find the subscription, or create it; InvalidRequestError when it is another than wanted."""
        witness = cursors.load(wanted.name, Owner.SUBSCRIPTION) or _created(cursors, tail, wanted)
        found = _subscribed(witness, wanted)
        if (found.topics, found.pins) != (wanted.topics, wanted.pins):
            message = (
                f"log {wanted.log}, subscription {wanted.name}: expected one to {wanted.topics}, pins {wanted.pins},"
                f" found {found.topics}, pins {found.pins}: open it as it is, remove it first, or take another name"
            )
            raise InvalidRequestError(message)
        end, done = tail.manifest().next.position.offset, found.progress.limit or witness.cursor.position.offset
        if done > end:
            message = (
                f"log {wanted.log}, subscription {wanted.name}: expected acknowledgements below the log's end, {end},"
                f" found some up to {done}: an older manifest was restored, or the cursor was copied here: move it"
                f" (`wal3 cursor set`), or remove it"
            )
            raise CorruptError(message)
        return cls(cursors, wanted, witness)

    @property
    def name(self) -> str:
        """The subscription's name, which is its cursor's."""
        return self._wanted.name

    @property
    def position(self) -> LogPosition:
        """The floor that was saved or found last."""
        return self.witness.cursor.position

    def save(self, offset: int, timestamp_us: int, progress: Progress) -> bool:
        """Save a floor and the progress above it; False, without a request, when that is what was saved last.

        CursorConflictError when another process has saved since.
        """
        position = LogPosition(offset, max(timestamp_us, self.position.timestamp_us))
        if offset == self.position.offset and progress == self.state.progress:
            return False
        extension = replace(self.state, progress=progress).extension(offset)
        name, owner = self._wanted.name, Owner.SUBSCRIPTION
        self._found(self._cursors.save(name, position, self.witness, owner=owner, extension=extension))
        return True

    def look_again(self) -> bool:
        """Load what another process has saved; False if the subscription was put back meanwhile.

        CursorConflictError if it was removed, or removed and created again.
        """
        before, state = self.position.offset, self.state
        witness = self._cursors.load(self._wanted.name)
        is_one = witness is not None and witness.cursor.owner is Owner.SUBSCRIPTION
        if witness is None or not is_one or _subscribed(witness, self._wanted).token != self._token:
            what = "none" if witness is None else "another one of that name"
            message = (
                f"log {self._wanted.log}, subscription {self._wanted.name}: expected the one that was opened, found"
                f" {what}: it was removed meanwhile, and what is acknowledged now is not saved; open it again"
            )
            raise CursorConflictError(message)
        self._found(witness)
        now = witness.cursor.position.offset
        done = state.progress.done
        return before <= now and self.state.progress.done.holds_all(done.between(now, state.progress.done_limit))


def _subscribed(witness: Witness, wanted: Wanted) -> Subscribed:
    return Subscribed.of(witness.cursor, f"log {wanted.log}, subscription {wanted.name}")


def _created(cursors: CursorStore, tail: Tail, wanted: Wanted) -> Witness:
    subscribed = Subscribed(token=wanted.token, topics=wanted.topics, pins=wanted.pins)
    num_bytes = len(strict_json.dump(subscribed.extension(0).to_json()))
    if num_bytes > _TOPICS_BYTES_MAX:
        message = f"topics: expected patterns that take at most {_TOPICS_BYTES_MAX} bytes as JSON, found {num_bytes}"
        raise InvalidRequestError(message)
    position, passed = _position(tail, wanted, tail.manifest())
    extension = replace(subscribed, progress=Progress(passed)).extension(position.offset)
    try:
        # Left where it is, the next start would skip silently what this one reports.
        return cursors.create(
            wanted.name,
            position,
            owner=Owner.SUBSCRIPTION,
            pins=wanted.pins,
            extension=extension,
            stays=wanted.start == "beginning",
        )
    except (CursorConflictError, GarbageCollectedError) as error:
        # Another process has created it since; or it was, at the first record that is kept.
        witness = cursors.load(wanted.name, Owner.SUBSCRIPTION)
        if witness is None or (isinstance(error, GarbageCollectedError) and wanted.start != "beginning"):
            raise
        return witness


def _position(tail: Tail, wanted: Wanted, manifest: Manifest) -> tuple[LogPosition, OffsetRanges]:
    """Return where it begins, and what it passes behind that."""
    if wanted.start == "beginning":
        return manifest.first_kept.position, OffsetRanges()
    takes = TopicFilter(wanted.topics).takes
    begun = begun_at(wanted.start, manifest, wanted.log, tail=tail, takes=takes)
    if len(begun.passed.ranges) >= RANGES_MAX:
        message = (
            f"start: expected fewer than {RANGES_MAX} topics for last_per_topic, found {len(begun.passed.ranges)}"
            f" ranges of messages to pass: take patterns that match fewer, or another start"
        )
        raise InvalidRequestError(message)
    place, end = begun.place, manifest.next.position
    if isinstance(place, int):
        records = tail.records(place, Limits(records=1), manifest=manifest)
        return LogPosition(place, next((each.timestamp_us for each in records), end.timestamp_us)), begun.passed
    for record in tail.records(place, manifest=manifest):
        item = message_of(record, manifest.log_id, lambda _: True)
        if not isinstance(item, FeedMessage) or item.published_us >= place.timestamp_us:
            return LogPosition(record.offset, record.timestamp_us), begun.passed
    return end, begun.passed


# A save is refused when another process has saved meanwhile.
_SAVES_MAX = 256
# How long a save waits at least, in seconds, after one that the store did not answer.
_AGAIN_S_MIN = 1.0


class Saver:
    """Saves one subscription; ``lock`` guards what is outstanding."""

    def __init__(
        self,
        saved: SavedSubscription,
        outstanding: Outstanding,
        lock: Lock,
        *,
        options: SubscriptionOptions,
        runtime: Runtime,
    ) -> None:
        self.saved = saved
        self.outstanding = outstanding
        self.lock = lock
        self.options = options
        self.runtime = runtime
        self._saving = runtime.lock()
        self._unsaved = 0
        self._timer: Timer | None = None
        self._failure: LogError | None = None
        self._closed = False

    def raise_failure(self) -> None:
        """Raise the error of a save that no call has waited for, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def changed(self, num_acks: int) -> None:
        """Save at once if there are enough acknowledgements, else when it is time."""
        with self.lock:
            self._unsaved += num_acks
            due = self._unsaved >= self.options.save_acks_max or self.options.save_s_max == 0
            # An acknowledgement after the end is not left to a timer.
            due = due or (self._closed and num_acks > 0)
            if not due:
                self._set_timer(self.options.save_s_max)
        if due:
            self.save()

    def _set_timer(self, pause_s: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = self.runtime.call_later(pause_s, self._save_by_time)

    def save(self, *, looks: bool = False) -> None:
        """Save now. CursorConflictError if the subscription was removed meanwhile.

        With ``looks``, that is found, and what others have saved, even if there is nothing to save.
        """
        try:
            self._save(looks=looks)
        except UnavailableError:
            # There may be no other call.
            with self.lock:
                self._set_timer(max(_AGAIN_S_MIN, self.options.save_s_max))
            raise

    def _save(self, *, looks: bool) -> None:
        with self._saving:
            for _ in range(_SAVES_MAX):
                with self.lock:
                    self._unsaved = 0
                    timer, self._timer = self._timer, None
                    floor, progress = self.outstanding.floor(), self.outstanding.progress()
                if timer is not None:
                    timer.cancel()
                with contextlib.suppress(CursorConflictError):
                    if self.saved.save(*floor, progress) or not looks:
                        return
                self._take_over()
                looks = False
            message = f"subscription: expected to be saved in {_SAVES_MAX} tries, found another version each time"
            raise CursorConflictError(message)

    def _take_over(self) -> None:
        """Unite what another process has done with what this one has; begin again where the subscription was put."""
        before = self.saved.state.progress
        onwards = self.saved.look_again()
        position, progress = self.saved.position, self.saved.state.progress
        with self.lock:
            if onwards:
                self.outstanding.take_over(position, progress, before)
            else:
                self.outstanding.begin_again(position, progress)

    def _save_by_time(self) -> None:
        with self.lock:
            self._timer = None
        try:
            self.save()
        except LogError as error:
            self._failure = error

    def close(self) -> None:
        """Save for the last time."""
        with self.lock:
            self._closed = True
        self.save()
