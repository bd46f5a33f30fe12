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
from wal3_core.format import strict_json
from wal3_core.format.cursor import Owner
from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.position import AtTime, LogPosition
from wal3_core.options import Limits
from wal3_core.views.feed.feed_reader import begun_at
from wal3_core.views.feed.messages import FeedMessage, message_of
from wal3_core.views.feed.outstanding import Outstanding
from wal3_core.views.feed.subscribed import Progress, Subscribed
from wal3_core.views.feed.topics import topic_filter

if TYPE_CHECKING:
    from wal3_core.format.manifest import Manifest
    from wal3_core.runtime import Runtime, Timer
    from wal3_core.store.documents.cursor_store import CursorStore, Witness
    from wal3_core.views.feed.subscribed import SubscriptionOptions
    from wal3_core.views.feed.tail import SharedTailReader
    from wal3_core.views.feed.topics import Pattern

# Bytes of the topics; the rest of a cursor's document is for what is acknowledged: 2,000 ranges of two numbers.
_TOPICS_BYTES_MAX = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller wants a subscription to be."""

    log: str
    name: str
    start: str | int | AtTime
    topics: tuple[Pattern, ...]
    options: SubscriptionOptions

    def __str__(self) -> str:
        return f"log {self.log}, subscription {self.name}"


# Tries of a save, which is refused when another process has saved meanwhile.
_SAVES_MAX = 256
# Seconds that a save waits at least after one that the store did not answer.
_AGAIN_S_MIN = 1.0


class SavedSubscription:
    """One subscription: its cursor, as this process saved or found it last, and what is outstanding since.

    ``lock`` guards what is outstanding.
    """

    def __init__(self, cursors: CursorStore, wanted: Wanted, witness: Witness, runtime: Runtime) -> None:
        self._cursors = cursors
        self._wanted = wanted
        self._runtime = runtime
        self.name = wanted.name
        self._found(witness)
        self._token = self.state.token
        self.lock = runtime.lock()
        self.outstanding = Outstanding(self.position, self.state.progress)
        self._saving = runtime.lock()
        self._unsaved = 0
        self._timer: Timer | None = None
        self._failure: LogError | None = None
        self._closed = False

    def _found(self, witness: Witness) -> None:
        self.witness = witness
        # What was saved or found last.
        self.state = Subscribed.of(witness.cursor, str(self._wanted))

    @classmethod
    def open(cls, cursors: CursorStore, tail: SharedTailReader, wanted: Wanted, runtime: Runtime) -> SavedSubscription:
        """Find the subscription, or create it; InvalidRequestError when it is another than wanted."""
        witness = cursors.load(wanted.name, Owner.SUBSCRIPTION) or _created(cursors, tail, wanted, runtime.token())
        saved = cls(cursors, wanted, witness, runtime)
        state, pins = saved.state, wanted.options.pins
        if (state.topics, state.pins) != (wanted.topics, pins):
            message = (
                f"{wanted}: expected one to {wanted.topics}, pins {pins}, found {state.topics}, pins {state.pins}: open"
                f" it as it is, remove it first, or take another name"
            )
            raise InvalidRequestError(message)
        end, done = tail.manifest().next.position.offset, state.progress.limit or saved.position.offset
        if done > end:
            message = (
                f"{wanted}: expected acknowledgements below the log's end, {end}, found some up to {done}: an older"
                f" manifest was restored, or the cursor was copied here: move it (`wal3 cursor set`), or remove it"
            )
            raise CorruptError(message)
        return saved

    @property
    def position(self) -> LogPosition:
        """The floor that was saved or found last."""
        return self.witness.cursor.position

    def raise_failure(self) -> None:
        """Raise the error of a save that no call has waited for, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def changed(self, num_acks: int) -> None:
        """Save at once if there are enough acknowledgements, else when it is time."""
        options = self._wanted.options
        with self.lock:
            self._unsaved += num_acks
            due = self._unsaved >= options.save_acks_max or options.save_s_max == 0
            # An acknowledgement after the end is not left to a timer.
            due = due or (self._closed and num_acks > 0)
            if not due:
                self._set_timer(options.save_s_max)
        if due:
            self.save()

    def _set_timer(self, pause_s: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._runtime.call_later(pause_s, self._save_by_time)

    def _save_by_time(self) -> None:
        with self.lock:
            self._timer = None
        try:
            self.save()
        except LogError as error:
            self._failure = error

    def save(self, *, looks: bool = False) -> None:
        """Save now. CursorConflictError if the subscription was removed meanwhile.

        With ``looks``, that is found, and what others have saved, even if there is nothing to save.
        """
        try:
            self._save(looks=looks)
        except UnavailableError:
            # There may be no other call.
            with self.lock:
                self._set_timer(max(_AGAIN_S_MIN, self._wanted.options.save_s_max))
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
                    if self._write(*floor, progress) or not looks:
                        return
                self._take_over()
                looks = False
            message = f"{self._wanted}: expected to be saved in {_SAVES_MAX} tries, found another version each time"
            raise CursorConflictError(message)

    def _write(self, offset: int, timestamp_us: int, progress: Progress) -> bool:
        """Write a floor and the progress above it; False, without a request, when that is what was saved last.

        CursorConflictError when another process has saved since.
        """
        if offset == self.position.offset and progress == self.state.progress:
            return False
        position = LogPosition(offset, max(timestamp_us, self.position.timestamp_us))
        extension = replace(self.state, progress=progress).extension(offset)
        owner = Owner.SUBSCRIPTION
        self._found(self._cursors.save(self.name, position, self.witness, owner=owner, extension=extension))
        return True

    def _take_over(self) -> None:
        """Load what another process has saved, and unite it with what this one has done.

        Begin again where the subscription was put, if it was put back. CursorConflictError if it was removed, or
        removed and created again.
        """
        before, done = self.position.offset, self.state.progress.done
        progress = self.state.progress
        witness = self._cursors.load(self.name)
        is_one = witness is not None and witness.cursor.owner is Owner.SUBSCRIPTION
        if witness is None or not is_one or Subscribed.of(witness.cursor, str(self._wanted)).token != self._token:
            what = "none" if witness is None else "another one of that name"
            message = (
                f"{self._wanted}: expected the one that was opened, found {what}: it was removed meanwhile, and what is"
                f" acknowledged now is not saved; open it again"
            )
            raise CursorConflictError(message)
        self._found(witness)
        now, saved = self.position.offset, self.state.progress
        onwards = before <= now and saved.done.holds_all(done.between(now, progress.done_limit))
        with self.lock:
            if onwards:
                self.outstanding.take_over(self.position, saved, progress)
            else:
                self.outstanding.begin_again(self.position, saved)

    def close(self) -> None:
        """Save for the last time."""
        with self.lock:
            self._closed = True
        self.save()


def _created(cursors: CursorStore, tail: SharedTailReader, wanted: Wanted, token: str) -> Witness:
    pins = wanted.options.pins
    subscribed = Subscribed(token=token, topics=wanted.topics, pins=pins)
    num_bytes = len(strict_json.dump(subscribed.extension(0).to_json()))
    if num_bytes > _TOPICS_BYTES_MAX:
        message = f"topics: expected patterns that take at most {_TOPICS_BYTES_MAX} bytes as JSON, found {num_bytes}"
        raise InvalidRequestError(message)
    position, passed = _position(tail, wanted, tail.manifest())
    extension = replace(subscribed, progress=Progress(passed)).extension(position.offset)
    # Left where it is, the next start would skip silently what this one reports.
    stays = wanted.start == "beginning"
    try:
        return cursors.create(
            wanted.name, position, owner=Owner.SUBSCRIPTION, pins=pins, extension=extension, stays=stays
        )
    except (CursorConflictError, GarbageCollectedError) as error:
        # Another process has created it since; or it was, at the first record that is kept.
        witness = cursors.load(wanted.name, Owner.SUBSCRIPTION)
        if witness is None or (isinstance(error, GarbageCollectedError) and not stays):
            raise
        return witness


def _position(tail: SharedTailReader, wanted: Wanted, manifest: Manifest) -> tuple[LogPosition, OffsetRanges]:
    """Return where it begins, and what it passes behind that."""
    if wanted.start == "beginning":
        return manifest.first_kept.position, OffsetRanges()
    takes = topic_filter(wanted.topics)
    place, passed = begun_at(wanted.start, manifest, wanted.log, tail=tail, takes=takes)
    if len(passed.ranges) >= RANGES_MAX:
        message = (
            f"start: expected fewer than {RANGES_MAX} topics for last_per_topic, found {len(passed.ranges)}"
            f" ranges of messages to pass: take patterns that match fewer, or another start"
        )
        raise InvalidRequestError(message)
    end = manifest.next.position
    if isinstance(place, int):
        records = tail.records(place, Limits(records=1), manifest=manifest)
        return LogPosition(place, next((each.timestamp_us for each in records), end.timestamp_us)), passed
    for record in tail.records(place, manifest=manifest):
        item = message_of(record, manifest.log_id, lambda _: True, FeedMessage)
        if not isinstance(item, FeedMessage) or item.published_us >= place.timestamp_us:
            return LogPosition(record.offset, record.timestamp_us), passed
    return end, passed
