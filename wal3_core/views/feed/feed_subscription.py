"""Durable subscriptions to a feed: each message is delivered until it is acknowledged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, optional, seconds
from wal3_core.errors import CorruptError, CursorConflictError, GarbageCollectedError, InvalidRequestError, LogError
from wal3_core.log.read.consumed import keep_successors
from wal3_core.model.cursor import Owner
from wal3_core.model.paths import check_cursor_name, check_log_name
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.object_store import a_store
from wal3_core.views.feed.feed_start import FeedStart, ends, feed_start
from wal3_core.views.feed.looking import Looking
from wal3_core.views.feed.messages import Delivery, Gap, delivery_of, topic_of
from wal3_core.views.feed.outstanding import Outstanding, start_of_item
from wal3_core.views.feed.saved_subscription import SavedSubscription, Wanted
from wal3_core.views.feed.saver import Saver
from wal3_core.views.feed.subscription_options import SubscriptionOptions
from wal3_core.views.feed.tail import Tail, TimeIsOverError, tail_of
from wal3_core.views.feed.topics import EVERY_TOPIC, TopicFilter, check_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from wal3_core.log.read.following import Following
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.record import Record
    from wal3_core.storage.object_store import ObjectStore


class FeedSubscription:
    """Receives the messages of a log under a name that outlives this process. A context manager.

    Each message is delivered until it is acknowledged, in any order; what was not acknowledged when a process ended, or
    was and not saved, is delivered again by the next one. So a message may come more than once, and none is skipped.
    Two processes of one name both get the messages, except those whose acknowledgement one has found saved by the
    other. Any number of threads may use it at once. Its state is a cursor of the log.
    """

    def __init__(self, tail: Tail, saved: SavedSubscription, options: SubscriptionOptions, runtime: Runtime) -> None:
        self._tail = tail
        self._saved = saved
        self._options = options
        self._runtime = runtime
        self._filter = TopicFilter(saved.state.topics)
        self._log_id = tail.newest(0.0).log_id
        # Taken in this order: for reading, for what is outstanding.
        self._reading, self._lock = runtime.lock(), runtime.lock()
        self._outstanding = Outstanding(saved.position, saved.state.done)
        self._saver = Saver(saved, self._outstanding, self._lock, options=options, runtime=runtime)
        self._looking = Looking(tail, runtime)
        self._following: Following | None = None
        self._acks = f"{tail.url}#{runtime.token()}"

    @classmethod
    @checked(
        store=a_store,
        log=check_log_name,
        name=check_cursor_name,
        start=feed_start,
        topics=check_patterns,
        options=optional(instance_of(SubscriptionOptions)),
        runtime=optional(a_runtime),
    )
    def open(  # noqa: PLR0913 - where, who, what, from where, how
        cls,
        store: ObjectStore,
        log: str,
        name: str,
        *,
        start: FeedStart = "beginning",
        topics: str | Sequence[str] = EVERY_TOPIC,
        options: SubscriptionOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open the subscription of that name, or create it at ``start``, which counts for nothing later.

        A time that the log has not reached yet is the log's end: messages before it are delivered, too.
        ``topics`` as for ``FeedReader``. They and ``SubscriptionOptions.pins`` belong to the subscription:
        InvalidRequestError if it has others, or the name is that of another cursor.
        """
        runtime, options = runtime or shared_runtime(), options or SubscriptionOptions()
        tail = tail_of(store, log, options.reader, runtime)
        log_id = tail.newest(0.0).log_id
        cursors = CursorStore(store, log, runtime=runtime, retry=options.reader.retry, log_id=log_id)
        assert isinstance(topics, tuple)
        place = feed_start(start, "start")
        wanted = Wanted(log=log, name=name, start=place, topics=topics, pins=options.pins, token=runtime.token())
        saved = SavedSubscription.open(cursors, tail, wanted)
        keep_successors(store, name, saved.witness, tail.manifest(), options=options.reader, runtime=runtime)
        return cls(tail, saved, options, runtime)

    @staticmethod
    @checked(store=a_store, log=check_log_name, name=check_cursor_name, runtime=optional(a_runtime))
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
        """Whether the log is sealed, and all its messages were acknowledged."""
        following, found = self._following, self._outstanding
        sealed = following is not None and following.sealed is not None
        # In this order: it may be put back meanwhile, or was since it came to the seal.
        return sealed and not len(found) and following is not None and following.start == found.read_limit

    @checked(timeout_s=optional(seconds))
    def recv(self, timeout_s: float | None = None) -> Delivery | Gap | None:
        """Return the next message, or one that is due again; None after ``timeout_s`` seconds, or once it ``ended``.

        A ``Gap`` tells a subscription that does not pin which messages are gone, whatever their topics were; it is to
        be acknowledged like a message. Waits and ends as ``FeedReader.recv``, and waits while ``prefetch_max`` messages
        are not acknowledged. CursorConflictError if the subscription was removed meanwhile.
        """
        limit_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while True:
            self._saver.raise_failure()
            acks = self._runtime.await_topic(self._acks, -1, 0.0)
            self._looking.begin(limit_s, at_once=timeout_s == 0)
            item = None
            try:
                item = self._next(limit_s if timeout_s else None)
            except TimeIsOverError:
                if not self._looking.is_over(limit_s):
                    # The look goes on: it need not be news for those that wait.
                    continue
            if item is not None or ends(self, self._following, self._tail.url) or not self._pause(acks, limit_s):
                return item

    def _pause(self, acks: int, limit_s: float | None) -> bool:
        with self._lock:
            due_s, full = self._outstanding.due_s, self._is_full()
        now_s = self._runtime.monotonic_s()
        if limit_s is not None and now_s >= limit_s:
            return False
        until_s = [each for each in (due_s, limit_s) if each is not None]
        if full:
            # At the latest when an item is due again: there is one.
            pause_s = max(0.0, min(until_s, default=now_s + self._options.ack_wait_s) - now_s)
            self._runtime.await_topic(self._acks, acks, pause_s)
            return True
        self._looking.pause(min(until_s, default=None))
        return True

    def _is_full(self) -> bool:
        return len(self._outstanding) >= self._options.prefetch_max

    @checked(item=instance_of(Delivery, Gap))
    def acknowledge(self, item: Delivery | Gap) -> None:
        """Take an item as done: it is not delivered again once that is saved. Done items may be acknowledged again.

        Saves as ``SubscriptionOptions`` say; errors as ``save``. InvalidRequestError for an item that this
        subscription has not delivered.
        """
        self._runtime.check_process()
        with self._lock:
            found, end = self._outstanding.finish(item), self._outstanding.end
        if found:
            self._runtime.publish(self._acks)
            self._saver.changed(1)
        elif start_of_item(item) >= end:
            message = (
                f"subscription {self._saved.name}: expected an item that it has delivered, below offset {end},"
                f" found {start_of_item(item)}"
            )
            raise InvalidRequestError(message)

    def save(self) -> None:
        """Save at once what is acknowledged.

        CursorConflictError if the subscription was removed meanwhile. If its cursor was put back, this continues there.
        One GET finds that even if nothing is to be saved.
        """
        self._saver.save(looks=True)

    def close(self) -> None:
        """Save what is acknowledged, now and later, and end ``recv`` by ClosedError. After an error, call it again."""
        self._looking.close()
        self._runtime.publish(self._acks)
        self._saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LogError as failure:
            if error is None:
                raise
            error.add_note(f"{type(failure).__name__}: {failure}")

    # ------------------------------------------------------------------ reading

    def _next(self, until_s: float | None) -> Delivery | Gap | None:
        item, over = self._given(), False
        if item is None:
            with self._reading:
                # Another thread may have read more meanwhile.
                while (item := self._given()) is None and not (over or self._is_full()) and self._read():
                    # What no pattern matches may be the whole log.
                    over = until_s is not None and self._runtime.monotonic_s() >= until_s
        return item

    def _given(self) -> Delivery | Gap | None:
        with self._lock:
            return self._outstanding.next(self._runtime.monotonic_s(), self._options.ack_wait_s)

    def _read(self) -> bool:
        """Read what the log holds now, as far as there is room; False at its end."""
        following, before = self._following, self._outstanding.read_limit
        if following is None or following.start != before:
            # It begins, or an error or another process has moved the place.
            following = self._following = self._tail.followed(before, self._manifest)
        try:
            taken = following.take(1)
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
            self._saver.changed(0)
        return moved

    def _manifest(self) -> Manifest:
        manifest = self._looking.manifest(self._outstanding.read_limit)
        if manifest.next.position.offset < self._outstanding.read_limit:
            # Another process has seen more of the log, and said so in the cursor.
            manifest = self._tail.newest(self._runtime.monotonic_s(), self._looking.limit_s)
        return manifest

    def _is_done_elsewhere(self, read_limit: int) -> bool:
        """Find what another process has acknowledged: that may have been collected since."""
        # If the subscription was removed, that is why; the next save says so.
        with contextlib.suppress(CursorConflictError):
            self._saver.save(looks=True)
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
        topic = topic_of(record, self._tail.url)
        wanted = self._filter.takes(topic)
        item = delivery_of(record, topic, self._log_id, self._tail.url) if wanted else None
        self._pass(record.offset)
        if item is None:
            self._outstanding.passed(record.offset, record.timestamp_us)
        else:
            self._outstanding.add(item)
