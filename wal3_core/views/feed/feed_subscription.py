"""Durable subscriptions to a feed: each message is delivered until it is acknowledged.

A subscription's floor and what is acknowledged above it are one document, its cursor, replaced by CAS: no crash leaves
one without the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from wal3_core.arguments import checked, instance_of, seconds
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
from wal3_core.format.manifest import Manifest
from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.paths import check_cursor_name, check_log_name
from wal3_core.format.position import AtTime, LogPosition
from wal3_core.format.record import Record
from wal3_core.log.read.consumer import keep_successors
from wal3_core.log.read.following import AsyncClosing, Calls, awaited
from wal3_core.options import Limits
from wal3_core.runtime import Runtime, Timer, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.object_store import ObjectStore, a_store
from wal3_core.views.feed.feed_reader import (
    BYTES_TAKEN_MAX,
    RECORDS_TAKEN_MAX,
    FeedStart,
    begun_at,
    feed_start,
    num_behind,
)
from wal3_core.views.feed.messages import Delivery, FeedMessage, Gap, Stray, message_of
from wal3_core.views.feed.outstanding import Item, Outstanding, UncountedError, start_of_item
from wal3_core.views.feed.subscribed import Progress, Subscribed, SubscriptionInfo, SubscriptionOptions
from wal3_core.views.feed.tail import Follower, SharedTailReader, WaitingCall, tail_of
from wal3_core.views.feed.topics import EVERY_TOPIC, Pattern, check_patterns, topic_filter

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
    """A subscription's cursor, as this process saved or found it last, and, under ``lock``, what is outstanding."""

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
            raise InvalidRequestError(
                f"{wanted}: expected one to {wanted.topics}, pins {pins}, found {state.topics}, pins {state.pins}: open"
                f" it as it is, remove it first, or take another name"
            )
        end, done = tail.manifest().next.position.offset, state.progress.limit or saved.position.offset
        if done > end:
            raise CorruptError(
                f"{wanted}: expected acknowledgements below the log's end, {end}, found some up to {done}: an older"
                f" manifest was restored, or the cursor was copied here: move it (`wal3 cursor set`), or remove it"
            )
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
        """Save now; if it ``looks``, find what others saved in any case. CursorConflictError if it was removed."""
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
        """Write a floor and what is above it, unless it is what was saved last. CursorConflictError if another has."""
        if offset == self.position.offset and progress == self.state.progress:
            return False
        position = LogPosition(offset, max(timestamp_us, self.position.timestamp_us))
        extension = replace(self.state, progress=progress).extension(offset)
        owner = Owner.SUBSCRIPTION
        self._found(self._cursors.save(self.name, position, self.witness, owner=owner, extension=extension))
        return True

    def _take_over(self) -> None:
        """Unite what others have saved with what this process has done; begin again where it was put back.

        CursorConflictError if it was removed, or removed and created again.
        """
        before, done = self.position.offset, self.state.progress.done
        progress = self.state.progress
        witness = self._cursors.load(self.name)
        is_one = witness is not None and witness.cursor.owner is Owner.SUBSCRIPTION
        if witness is None or not is_one or Subscribed.of(witness.cursor, str(self._wanted)).token != self._token:
            what = "none" if witness is None else "another one of that name"
            raise CursorConflictError(
                f"{self._wanted}: expected the one that was opened, found {what}: it was removed meanwhile, and what is"
                f" acknowledged now is not saved; open it again"
            )
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
        raise InvalidRequestError(
            f"start: expected fewer than {RANGES_MAX} topics for last_per_topic, found {len(passed.ranges)}"
            f" ranges of messages to pass: take patterns that match fewer, or another start"
        )
    end = manifest.next.position
    if isinstance(place, int):
        records = tail.records(place, Limits(records=1), manifest=manifest)
        return LogPosition(place, next((each.timestamp_us for each in records), end.timestamp_us)), passed
    for record in tail.records(place, manifest=manifest):
        item = message_of(record, manifest.log_id, lambda _: True, FeedMessage)
        if not isinstance(item, FeedMessage) or item.published_us >= place.timestamp_us:
            return LogPosition(record.offset, record.timestamp_us), passed
    return end, passed


# Calls of one subscription in asyncio that wait at a time, and those that save or look.
_RECEIVING_MAX = 256
_ASIDE_MAX = 4
_an_item = instance_of(Delivery, Gap, Stray)


class FeedSubscription(Follower[Item], AsyncClosing):
    """Receives the messages of a log under a name that outlives this process. A context manager.

    Each message is delivered until it is acknowledged, in any order; what was not acknowledged when a process ended, or
    was and not saved, is delivered again by the next one. So a message may come more than once, and none is skipped.
    Two processes of one name both get the messages, except those whose acknowledgement one has found saved by the
    other. A record that is no message is passed: it is received once, as a ``Stray``, and needs no acknowledgement. Any
    number of threads may use it at once. Its state is a cursor of the log.

    ``recv`` gives a subscription that does not pin a ``Gap`` for messages that are gone, whatever their topics were; it
    is to be acknowledged like a message. It waits while ``prefetch_max`` messages are not acknowledged, and raises
    CursorConflictError if the subscription was removed meanwhile.

    In asyncio, use ``async with`` and ``async for``, and await the methods whose names end in ``_async``.
    """

    def __init__(
        self, tail: SharedTailReader, saved: SavedSubscription, options: SubscriptionOptions, runtime: Runtime
    ) -> None:
        # What waits for messages keeps no thread from what is done with them.
        super().__init__(tail, runtime, saved.state.topics, threads_max=_RECEIVING_MAX)
        self._async = Calls("wal3-feed-aside", _ASIDE_MAX)
        self._saved = saved
        self._options = options
        # Taken in this order: for reading, for what is outstanding.
        self._reading, self._lock = runtime.lock(), saved.lock
        self._outstanding = saved.outstanding
        self._following = tail.followed(self._outstanding.read_limit, self._newer)

    @classmethod
    @checked(store=a_store, log=check_log_name, name=check_cursor_name, start=feed_start, topics=check_patterns)
    def open(  # noqa: PLR0913 - where, who, what, from where, how
        cls,
        store: ObjectStore,
        log: str,
        name: str,
        *,
        start: FeedStart = "beginning",
        topics: Pattern | Sequence[Pattern] = EVERY_TOPIC,
        options: SubscriptionOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open the subscription of that name, or create it at ``start``, which counts for nothing later.

        A time that the log has not reached yet is the log's end: messages before it are delivered, too.
        ``start`` and ``topics`` as for ``FeedReader``; ``last_per_topic`` takes fewer than 2,000 topics. Topics and
        ``SubscriptionOptions.pins`` belong to the subscription: InvalidRequestError if it has others, or the name is
        that of another cursor.
        """
        runtime, options = runtime or shared_runtime(), options or SubscriptionOptions()
        tail = tail_of(store, log, options.reader, runtime)
        log_id = tail.newest(0.0).log_id
        cursors = CursorStore(store, log, runtime=runtime, retry=options.reader.retry, log_id=log_id)
        patterns = check_patterns(topics, "topics")
        place = feed_start(start, "start")
        wanted = Wanted(log=log, name=name, start=place, topics=patterns, options=options)
        saved = SavedSubscription.open(cursors, tail, wanted, runtime)
        keep_successors(store, name, saved.witness, tail.manifest(), options=options.reader, runtime=runtime)
        return cls(tail, saved, options, runtime)

    @staticmethod
    @checked(store=a_store, log=check_log_name, name=check_cursor_name)
    def remove(store: ObjectStore, log: str, name: str, *, runtime: Runtime | None = None) -> None:
        """Delete the subscription of that name: the messages that it alone kept can be collected.

        InvalidRequestError for the cursor of something else.
        """
        cursors = CursorStore(store, log, runtime=runtime)
        with contextlib.suppress(CorruptError):
            cursors.load(name, Owner.SUBSCRIPTION)
        cursors.delete(name)

    @property
    def floor(self) -> int:
        """The offset below which everything is done, as far as it is saved."""
        return self._saved.position.offset

    @property
    def ended(self) -> bool:
        """Whether the log is sealed, and all its messages were acknowledged, or are dead letters."""
        following, found = self._following, self._outstanding
        # In this order: it may be put back meanwhile, or was since it came to the seal.
        return following.sealed is not None and not len(found) and following.start == found.read_limit

    @checked(item=_an_item)
    def acknowledge(self, item: Item) -> None:
        """Take an item as done: it is not delivered again once that is saved. Done items may be acknowledged again.

        A dead letter goes, too. Saves as ``SubscriptionOptions`` say; errors as ``save``. InvalidRequestError for an
        item that this subscription has not delivered.
        """
        self._runtime.check_process()
        with self._lock:
            found = self._outstanding.finish(item)
        if found:
            self._rouse(for_room=True)
            self._saved.changed(1)
        else:
            self._check_delivered(item)

    acknowledge_async = awaited(acknowledge)

    @checked(item=_an_item, delay_s=seconds)
    def nak(self, item: Item, delay_s: float = 0.0) -> bool:
        """Have an item delivered again now, or after ``delay_s`` seconds, and not when its ``ack_wait_s`` is over.

        False, and nothing done, if it is acknowledged or a dead letter, or was delivered again since.
        InvalidRequestError as ``acknowledge``. In another process it is delivered when that process says.
        """
        found = self._put_off(item, max(0.0, delay_s))
        if found:
            self._rouse()
        return found

    nak_async = awaited(nak)

    @checked(item=_an_item)
    def in_progress(self, item: Item) -> bool:
        """Say that an item is being worked on: its ``ack_wait_s`` begins again. False as ``nak``."""
        return self._put_off(item, self._options.ack_wait_s)

    in_progress_async = awaited(in_progress)

    def _put_off(self, item: Item, delay_s: float) -> bool:
        self._runtime.check_process()
        with self._lock:
            found = self._outstanding.put_off(item, self._runtime.monotonic_s() + delay_s)
        if not found:
            self._check_delivered(item)
        return found

    def _check_delivered(self, item: Item) -> None:
        end = self._outstanding.end
        if start_of_item(item) >= end:
            raise InvalidRequestError(
                f"subscription {self._saved.name}: expected an item that it has delivered, below offset {end},"
                f" found {start_of_item(item)}"
            )

    # ------------------------------------------------------------------ dead letters

    def dead_letters(self) -> list[Delivery | Gap]:
        """Read the messages that were delivered ``max_deliveries`` times and are not acknowledged, in order.

        Each is kept, as any message that is not acknowledged, until ``acknowledge`` removes it, or ``redeliver`` has it
        delivered again. One that the log lost, as it does not pin, is a ``Gap``. While there are 500 of them, other
        messages are delivered more often than ``max_deliveries``.
        """
        with self._lock:
            dead = self._outstanding.dead
        return [self._dead_letter(offset, attempts) for offset, attempts in dead.items()]

    dead_letters_async = awaited(dead_letters)

    def _dead_letter(self, offset: int, attempts: int) -> Delivery | Gap:
        with contextlib.suppress(GarbageCollectedError):
            for record in self._tail.records(offset, Limits(records=1)):
                item = message_of(record, self._log_id, self._takes, partial(Delivery, attempt=attempts))
                if record.offset == offset and isinstance(item, Delivery):
                    return item
        return Gap(start=offset, limit=offset + 1)

    @checked(item=instance_of(Delivery))
    def redeliver(self, item: Delivery) -> None:
        """Have a dead letter delivered again, as often as a new message; InvalidRequestError for any other item.

        That is saved with the next acknowledgements: until then, a process that opens the subscription finds it dead.
        """
        with self._lock:
            found = self._outstanding.revive(item)
        if not found:
            message = f"subscription {self._saved.name}: expected a dead letter, found {item.offset}, which is none"
            raise InvalidRequestError(message)
        self._saved.changed(0)
        self._rouse()

    redeliver_async = awaited(redeliver)

    def info(self) -> SubscriptionInfo:
        """Count what is to be delivered and what is not acknowledged: reads the keys behind the last message read."""
        manifest = self._tail.newest(self._runtime.monotonic_s())
        with self._lock:
            waiting, given, again = self._outstanding.num_given()
            num_dead, read_limit, is_behind = len(self._outstanding.dead), *self._outstanding.behind()
        behind = num_behind(
            self._tail, manifest, read_limit, lambda offset, topic: self._takes(topic) and is_behind(offset)
        )
        return SubscriptionInfo(
            num_pending=waiting + behind,
            num_ack_pending=given,
            num_redelivered=again,
            num_dead=num_dead,
            num_strays=self._num_strays,
            ack_floor=self.floor,
        )

    info_async = awaited(info)

    # ------------------------------------------------------------------ saving

    def save(self) -> None:
        """Save at once what is acknowledged.

        CursorConflictError if the subscription was removed meanwhile. If its cursor was put back, this continues there.
        One GET finds that even if nothing is to be saved.
        """
        self._saved.save(looks=True)

    save_async = awaited(save)

    def close(self) -> None:
        """Save what is acknowledged, now and later, and end ``recv`` by ClosedError. After an error, call it again."""
        super().close()
        self._async.close()
        self._saved.close()

    # ------------------------------------------------------------------ reading

    def _is_full(self) -> bool:
        return len(self._outstanding) >= self._options.prefetch_max

    def _next(self, until_s: float | None) -> Item | None:
        """Return an item to deliver; None at the end of what the log holds now, or once it is ``until_s``."""
        self._saved.raise_failure()
        item, over = self._given(), False
        if item is None:
            with self._reading:
                # Another thread may have read more meanwhile.
                while (item := self._given()) is None and not (over or self._is_full()) and self._read():
                    # What no pattern matches may be the whole log.
                    over = until_s is not None and self._runtime.monotonic_s() >= until_s
        return item

    def _pause(self, limit_s: float | None, call: WaitingCall) -> bool:
        with self._lock:
            due_s, call.for_room = self._outstanding.due_s, self._is_full()
        now_s = self._runtime.monotonic_s()
        if limit_s is not None and now_s >= limit_s:
            return False
        until_s = min((each for each in (due_s, limit_s) if each is not None), default=None)
        if not call.for_room:
            return super()._pause(until_s, call) or True
        # At the latest when an item is due again: there is one.
        pause_s = self._options.ack_wait_s if until_s is None else max(0.0, until_s - now_s)
        with contextlib.suppress(TimeoutError):
            self._runtime.wait(call.woken, pause_s)
        return True

    def _give_back(self, item: Item | None) -> None:
        if item is not None:
            with self._lock:
                self._outstanding.take_back(item, self._runtime.monotonic_s())
                self._num_strays -= isinstance(item, Stray)
            self._rouse()

    def _given(self) -> Item | None:
        options = self._options
        while True:
            saved, num_dead = self._saved.state.progress.deliveries, 0
            try:
                with self._lock:
                    num_dead -= len(self._outstanding.dead)
                    item = self._outstanding.next(
                        self._runtime.monotonic_s(), options.ack_wait_s, options.max_deliveries, saved
                    )
                    num_dead += len(self._outstanding.dead)
                    self._num_strays += isinstance(item, Stray)
                break
            except UncountedError:
                # If it ends this process, the next one knows how often it was delivered.
                self._saved.save()
        if num_dead or (isinstance(item, Delivery) and item.attempt > 1):
            self._saved.changed(0)
        return item

    def _read(self) -> bool:
        """Read what the log holds now, as far as there is room; False at its end."""
        following, before = self._following, self._outstanding.read_limit
        if following.start != before:
            # An error or another process has moved the place.
            following = self._following = self._tail.followed(before, self._newer)
        try:
            taken = following.take(self._num_ahead(), BYTES_TAKEN_MAX)
        except GarbageCollectedError:
            if self._is_done_elsewhere(before) or self._lost():
                return True
            raise
        with self._lock:
            if self._outstanding.read_limit != before:
                # A save has found the subscription put elsewhere meanwhile: read there.
                return True
            for record in taken:
                self._add(record)
            if not taken and isinstance(following.start, int):
                # Behind the last record others may have been dropped.
                self._pass(following.start)
            moved = self._outstanding.read_limit > before
        if moved:
            self._saved.changed(0)
        return moved

    def _num_ahead(self) -> int:
        """Return how many records to read at a time: more if many deliveries are to be counted by one request."""
        counts = self._options.max_deliveries is not None
        return max(1, min(RECORDS_TAKEN_MAX, self._options.prefetch_max - len(self._outstanding))) if counts else 1

    def _newer(self) -> Manifest:
        manifest = self._manifest(self._outstanding.read_limit)
        if manifest.next.position.offset < self._outstanding.read_limit:
            # Another process has seen more of the log, and said so in the cursor.
            manifest = self._tail.newest(self._runtime.monotonic_s(), self._poll_limit_s)
        return manifest

    def _is_done_elsewhere(self, read_limit: int) -> bool:
        """Find what another process has acknowledged: that may have been collected since."""
        # If the subscription was removed, that is why; the next save says so.
        with contextlib.suppress(CursorConflictError):
            self._saved.save(looks=True)
        with self._lock:
            return self._outstanding.read_limit != read_limit

    def _lost(self) -> bool:
        """Tell a subscription that does not pin what was collected before it was read; False if it was not that."""
        first = self._tail.manifest().first.position.offset
        with self._lock:
            gone = not self._saved.state.pins and first > self._outstanding.read_limit
            if gone:
                self._pass(first)
        return gone

    def _pass(self, limit: int) -> None:
        """Go on to an offset: the log has no records before it."""
        if not self._saved.state.pins:
            for gap in self._outstanding.lost(limit):
                self._outstanding.add(gap)
        self._outstanding.read_limit = max(self._outstanding.read_limit, limit)

    def _add(self, record: Record) -> None:
        item = message_of(record, self._log_id, self._takes, partial(Delivery, attempt=1))
        self._pass(record.offset)
        if item is None:
            self._outstanding.passed(record.offset, record.timestamp_us)
        else:
            self._outstanding.add(item)
