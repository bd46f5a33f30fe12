"""The broker of a queue: one thread that takes what callers ask for, appends one fragment, and answers.

Another broker is fenced by the log: each append is made on the condition that the log ends where this broker's last one
ended, and a new broker begins with an append of its own. Source: docs/protocol.md, "Delay queue".
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import (
    ClosedError,
    ConditionNotMetError,
    CursorConflictError,
    FencedError,
    LogError,
    LogReplacedError,
)
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.cursor import Owner
from wal3_core.model.position import LogPosition
from wal3_core.model.record import Message
from wal3_core.runtime import Outcome
from wal3_core.runtime.loggers import QUEUE
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.views.queue.answering import Answers, fitting, give
from wal3_core.views.queue.applying import apply
from wal3_core.views.queue.checkpointing import Checkpointer
from wal3_core.views.queue.clock import QueueClock
from wal3_core.views.queue.creating import keep_uncollected
from wal3_core.views.queue.definition import MS_PER_S
from wal3_core.views.queue.loading import CURSOR, QueueLoader
from wal3_core.views.queue.operations import Dequeue, Purge
from wal3_core.views.queue.queue_state import Turn
from wal3_core.views.queue.taken import Taken, fenced
from wal3_core.views.queue.taking import take, take_again
from wal3_core.views.queue.values import Values
from wal3_core.views.queue.waiting import Call, Inbox, Line

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.queue.loading import LoadedQueue
    from wal3_core.views.queue.operations import GiveBack
    from wal3_core.views.queue.queue_options import QueueOptions

# What one turn takes: it becomes one fragment.
_TURN_RECORDS = 20_000
_TURN_BYTES = 8 * 2**20
_VALUE_READERS = 4
# How long the broker sleeps at most while callers wait: the wall clock may be put forward.
_NAP_S_MAX = 1.0
_PREFETCH_EVERY_S = 0.2
# Between two looks at a checkpoint that is encoded, and between two tries to load the queue.
_PAUSE_S = 0.05
# So many records may follow the newest that says what the queue has come to: the next broker looks for it.
_BEHIND_MAX = 32


class Broker:
    """One queue in one process."""

    def __init__(self, store: ObjectStore, log: str, options: QueueOptions, runtime: Runtime) -> None:
        self.url = f"{store.url}/{log}"
        self._store, self._log = store, log
        self._options, self._runtime = options, runtime
        self._token = self._new_token()
        # Before the manifest is read: when the name leads to another log by then, this writer appends nothing there.
        self._writer = LogWriter.open(store, log, options=options.writer, runtime=runtime)
        self.log_id = QueueLoader(store, log, options.reader, runtime).check()
        self._loader = QueueLoader(store, log, options.reader, runtime, self.log_id)
        self.values = Values(self._loader.reader, options.cache_bytes_max, runtime, self.url)
        self._cursors = CursorStore(store, log, runtime=runtime, log_id=self.log_id)
        self._readers = runtime.executor("wal3-queue-values", _VALUE_READERS)
        self._aside = runtime.executor("wal3-queue-checkpoint", 1)
        self.inbox = Inbox(options.bytes_waiting_max, self.url, runtime, self.is_here)
        self._taken = Taken(self.url, self._loader.reader, self._readers, runtime, self.inbox)
        self._line = Line(runtime)
        self._ahead: Future[None] | None = None
        self._prefetch_again_s = 0.0
        self._clock = QueueClock(runtime)
        self._sound = True
        # Before the queue is taken: a cursor of something else fails this open, and no broker that works.
        self._cursors.load(CURSOR, Owner.QUEUE)
        take(self._writer, self._token)
        keep_uncollected(store, log, runtime, self.log_id)
        loaded = self._loader.load()
        self._begin(loaded)
        if self._cursors.load(CURSOR, Owner.QUEUE) is None:
            # Nothing was kept from key compaction: only a checkpoint from here on counts.
            with contextlib.suppress(CursorConflictError):
                self._cursors.init(CURSOR, self._end, owner=Owner.QUEUE)
            self.checkpointer.want()
        if loaded.behind > _BEHIND_MAX:
            self._commit(Turn(self._end.offset, self._clock.now_ms()), 0, 0)
        # A broker waits for the shared workers, so it is none of them.
        self._thread = runtime.start_thread(f"wal3-queue-{log}", self._run)

    def _begin(self, loaded: LoadedQueue) -> None:
        """Go on from what the log says; FencedError when another broker has taken the queue."""
        if loaded.broker != self._token:
            raise fenced(self.url, "another broker")
        self.state, self._end = loaded.state, LogPosition(loaded.end, 0)
        self._clock.begin_at(loaded.meta.now_ms)
        self.checkpointer = Checkpointer(loaded, self._options, self._aside, self._cursors, self._runtime)

    def is_here(self) -> bool:
        """Whether this is the broker's thread."""
        return self._thread.is_current()

    @property
    def num_waiting(self) -> int:
        """The calls that wait for an item."""
        return len(self._line)

    # ------------------------------------------------------------------ the loop

    def _run(self) -> None:
        try:
            while not self.inbox.closed:
                self._take_turn(self.inbox.take(self._nap_s()))
            self._finish()
        except BaseException as error:  # noqa: BLE001 - those who wait get it
            if not isinstance(error, LogError):
                QUEUE.exception("queue %s: the broker failed", self.url)
            self._give_up(error)

    def _nap_s(self) -> float | None:
        """Return how long there is nothing to do, None for as long as nothing is asked for."""
        if (self.checkpointer.busy and self._sound) or self._taken.holds:
            return _PAUSE_S
        until_s = self._line.left_s()
        if until_s is None:
            return None if self._sound else _NAP_S_MAX
        change_ms = self.state.next_change_ms() if self._sound else None
        if change_ms is not None:
            until_s = min(until_s, (change_ms - self._clock.now_ms()) / MS_PER_S)
        # A store that fails at once is not asked all the time.
        return min(max(until_s, 0.0 if self._sound else _PAUSE_S), _NAP_S_MAX)

    def _take_turn(self, calls: list[Call], *, last: bool = False) -> None:
        """Do what was asked for, make it durable, and answer."""
        answers = Answers(self.values, self._readers, self.give_back)
        left: list[Call] = []
        try:
            if not self._sound:
                self._load_again()
            else:
                self._taken.check(self._end.offset)
            calls = self._taken.admit(calls, last=last)
            self.checkpointer.begin(self.state, self._end)
            turn = Turn(self._end.offset, self._clock.now_ms())
            left = self._apply(calls, turn, answers)
            calls = calls[: len(calls) - len(left)]
            self._serve(turn, answers, last=last)
            num_changes, num_bytes = len(turn.keys), turn.num_bytes
            self.checkpointer.add_to(turn, wait=last)
            if turn.keys or turn.must_be_durable:
                self._commit(turn, num_changes, num_bytes)
        except Exception as error:
            # A purge that goes on with the next turn: what this one removed of it may be back.
            begun = [call for call in left[:1] if call.num_removed]
            calls, left = calls + begun, left[len(begun) :]
            waiting = self._line.futures()
            answers.fail([call.future for call in calls if call.future not in waiting], error)
            for future in self._line.over(last=last):
                give(future, None, error)
            self._taken.give_up(error)
            self.checkpointer.fail(error, last=last)
            # Any other failure passes: the queue is loaded again.
            if isinstance(error, FencedError | LogReplacedError) or not isinstance(error, LogError):
                raise
        else:
            answers.give(self.state.created_ms)
            self._prefetch()
        finally:
            self.inbox.put_back(left)
            self.inbox.done(sum(call.num_bytes for call in calls))

    def _load_again(self) -> None:
        """Load the queue after an append that failed: what this process has in memory is not what the log has."""
        self._writer.close()
        self._writer = LogWriter.open(self._store, self._log, options=self._options.writer, runtime=self._runtime)
        take_again(self._writer, self._token, self._loader, self.url)
        earlier = self.checkpointer
        self._begin(self._loader.load())
        self.checkpointer.take_over(earlier)
        self._sound = True

    def _apply(self, calls: list[Call], turn: Turn, answers: Answers) -> list[Call]:
        """Apply operations until the turn is full; return those that are left."""
        self.state.end_leases(_TURN_RECORDS // 4, turn)
        for index, call in enumerate(calls):
            if index and (len(turn.keys) >= _TURN_RECORDS or turn.num_bytes >= _TURN_BYTES):
                return calls[index:]
            future = call.future
            if isinstance(call.operation, Dequeue):
                self._line.join(call.operation, future)
                # Of the items that are there now: those enqueued behind it are for those who ask behind it, too.
                self._serve(turn, answers, waits=True)
            elif not future.running() and not future.set_running_or_notify_cancel():
                # Cancelled before its turn: it is not done.
                continue
            elif isinstance(call.operation, Purge):
                room = max(1, (_TURN_RECORDS - len(turn.keys)) // 2)
                removed = self.state.purge(call.operation.states, room, turn)
                begun = replace(call, num_removed=call.num_removed + removed)
                if removed == room:
                    return [begun, *calls[index + 1 :]]
                answers.add(future, begun.num_removed)
            else:
                try:
                    answers.add(future, apply(self.state, call.operation, turn))
                except LogError as error:
                    answers.add_error(future, error)
        return []

    def _serve(self, turn: Turn, answers: Answers, *, waits: bool = False, last: bool = False) -> None:
        """Hand items to those who wait, first come first served; unless it ``waits``, end what has waited enough."""
        while (waiter := self._line.first()) is not None:
            if len(turn.keys) >= _TURN_RECORDS or not self.state.head(1, turn.now_ms):
                break
            self._line.leave()
            # Its caller may give up until it is answered: then what is handed out here is given back.
            wanted = waiter.operation
            count = wanted.count
            if wanted.bytes_max is not None:
                count = len(fitting(self.state.head(count, turn.now_ms), wanted.bytes_max))
            answers.add_leases(
                waiter.future, self.state, self.state.lease(count, wanted.lease_s, self._new_token, turn)
            )
        if waits or (len(turn.keys) >= _TURN_RECORDS and not last):
            # Of a turn that is full, those who wait may get items with the next one.
            return
        for future in self._line.over(last=last):
            answers.add_leases(future, self.state, [])

    def give_back(self, operation: GiveBack) -> None:
        """Put items back with the next turn; if that fails, they come back when their leases end. Never waits."""
        self.inbox.put_back([Call(operation, Outcome(), 0)])
        self.inbox.wake()

    def _new_token(self) -> bytes:
        return bytes.fromhex(self._runtime.token())

    def _commit(self, turn: Turn, num_changes: int, num_bytes: int) -> None:
        """Append a turn's records; whatever goes wrong, the queue is loaded again before the next one.

        Of these, ``num_changes`` of ``num_bytes`` are no part of a checkpoint.
        """
        checkpoint = self.checkpointer
        turn.add_meta(self.state, self._token, checkpoint.as_of, checkpoint.offsets)
        self._sound = False
        begun_s = self._runtime.monotonic_s()
        records = [Message(body, key) for key, body in zip(turn.keys, turn.bodies, strict=True)]
        try:
            position = self._writer.append_many(records, expect_next=turn.start)
        except ConditionNotMetError as error:
            raise fenced(self.url, "another writer") from error
        self._sound = True
        self._taken.known(begun_s)
        self.values.keep(turn.start, turn.bodies)
        self._end = LogPosition(turn.start + len(records), position.timestamp_us)
        self.checkpointer.committed(num_changes, num_bytes, self._end)

    def _prefetch(self) -> None:
        """Read the values that are due soon, unless they are in memory."""
        count, now_s = self._options.prefetch_items, self._runtime.monotonic_s()
        if not count or now_s < self._prefetch_again_s:
            return
        self._prefetch_again_s = now_s + _PREFETCH_EVERY_S
        soon = self._clock.now_ms() + int(self._options.prefetch_s * MS_PER_S)
        rows = [row for row, _ in self.state.head(count, soon)]
        if (self._ahead is None or self._ahead.done()) and not self.values.has_all(rows):
            self._ahead = self._readers.submit(self.values.read_ahead, rows)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """Do what was asked for so far, and end."""
        try:
            self.inbox.check_reentry()
        except ClosedError:
            # A forked child: the broker is the parent's.
            return
        self.inbox.close()
        self._thread.join()

    def _finish(self) -> None:
        """Take the last turns: what waits for an item gets none."""
        while calls := self.inbox.take(0):
            self._take_turn(calls)
        self._take_turn([], last=True)
        while self.checkpointer.busy and self._sound:
            self._take_turn([], last=True)
        self._end_threads()

    def _end_threads(self) -> None:
        self._writer.close()
        self._readers.shutdown(wait=False)
        self._aside.shutdown(wait=True)

    def _give_up(self, error: BaseException) -> None:
        """Give all that wait an error, and take no more."""
        reason = error if isinstance(error, Exception) else FencedError(f"queue {self.url}: its broker ended")
        self.inbox.close(reason)
        for future in (*(call.future for call in self.inbox.take(0)), *self._line.over(last=True)):
            give(future, None, reason)
        self._taken.give_up(reason)
        self.checkpointer.give_up(reason)
        self._end_threads()
