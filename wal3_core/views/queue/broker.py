"""The broker of a queue: one thread that takes what callers ask for, appends one fragment, and answers.

Another broker is fenced by the log: each append is made on the condition that the log ends where this broker's last one
ended, and a new broker begins with an append of its own. When the log goes on with records of others, a broker that
still has the queue passes them, and does its turn again. Source: docs/protocol/queue.md, "Delay queue".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wal3_core.errors import (
    ClosedError,
    ConditionNotMetError,
    ContentionError,
    CorruptError,
    CursorConflictError,
    FencedError,
    GarbageCollectedError,
    LogError,
    LogReplacedError,
    SealedError,
    UnknownDurabilityError,
    UnknownItemError,
)
from wal3_core.format.cursor import Owner
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message
from wal3_core.log.write.writer import LogWriter
from wal3_core.runtime import Outcome, Runtime, wall_us
from wal3_core.runtime.loggers import QUEUE
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.queue import operations
from wal3_core.views.queue.calls import Answers, Inbox, Line, Query, QueuedCall, ValueCache, complete, fitting
from wal3_core.views.queue.checkpoint import Checkpointer
from wal3_core.views.queue.encoding import BROKER_KEY, DEFINITION_KEY, VALUE, id_of
from wal3_core.views.queue.loading import LoadedQueue, QueueLoader, keep_uncollected
from wal3_core.views.queue.operations import MS_PER_S, QueueOptions
from wal3_core.views.queue.queue_state import US_PER_MS, QueueState, Turn

if TYPE_CHECKING:
    from wal3_core.log.read.reader import LogReader

# The wall clock's lead over what the store has confirmed before an append is made to confirm it.
_DOUBT_MS = 1000
# The pause between two such appends.
_CONFIRMING_PAUSE_S = 60.0


class QueueClock:
    """The time goes on with the monotonic clock, and follows the wall clock forward as far as the store confirms it.

    The store does by the log's time, which is never far ahead of it. ``jumped_ms`` is by how much more has passed than
    by the monotonic clock: leases, which count by that one, do not end by it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ms = self.jumped_ms = 0.0
        self._read_s = runtime.monotonic_s()
        # The latest time that was confirmed, and when.
        self._confirmed_ms, self._confirmed_s = 0.0, self._read_s
        self._confirming_s = -_CONFIRMING_PAUSE_S
        self._begun = False

    def begin_at(self, now_ms: int) -> None:
        """Go on from a time that the queue has come to by now, unless this clock is ahead of it."""
        # What has passed before belongs to neither: the one who wrote that time may have done so a moment ago.
        self._now_ms = max(self._read_ms(), now_ms)
        if not self._begun:
            self._begun, self.jumped_ms = True, 0.0

    def bounded_ms(self) -> int:
        """Return the wall clock's time, or the confirmed one if that is earlier, wherever the queue's is."""
        return int(min(wall_us(self._runtime) / US_PER_MS, self._limit_ms(self._runtime.monotonic_s())))

    def go_back(self, now_ms: int) -> None:
        """Go on from an earlier time."""
        self._now_ms = now_ms

    def confirm(self, log_us: int) -> None:
        """Take note of the log's time, of a moment ago."""
        now_s = self._runtime.monotonic_s()
        if log_us / US_PER_MS > self._limit_ms(now_s):
            self._confirmed_ms, self._confirmed_s = log_us / US_PER_MS, now_s

    def wants_confirmation(self) -> bool:
        """Whether an append is to confirm the wall clock, which is far ahead; once a minute at most."""
        wall_ms, read_s = wall_us(self._runtime) / US_PER_MS, self._runtime.monotonic_s()
        ahead_ms = wall_ms - max(self._limit_ms(read_s), self._now_ms)
        if ahead_ms <= _DOUBT_MS or read_s - self._confirming_s < _CONFIRMING_PAUSE_S:
            return False
        self._confirming_s = read_s
        return True

    def now_ms(self) -> int:
        """Return the time, in whole milliseconds since the Unix epoch."""
        return int(self._read_ms())

    def _limit_ms(self, read_s: float) -> float:
        return self._confirmed_ms + (read_s - self._confirmed_s) * MS_PER_S

    def _read_ms(self) -> float:
        # The wall clock first: what passes between the two would be counted twice.
        wall_ms, read_s = wall_us(self._runtime) / US_PER_MS, self._runtime.monotonic_s()
        passed_s, self._read_s = max(0.0, read_s - self._read_s), read_s
        self._now_ms += passed_s * MS_PER_S
        gained_ms = max(0.0, min(wall_ms, self._limit_ms(read_s)) - self._now_ms)
        self._now_ms, self.jumped_ms = self._now_ms + gained_ms, self.jumped_ms + gained_ms
        return self._now_ms


# The pause between two checks that the queue is still the broker's.
FENCE_CHECK_S = 5.0


def fenced(url: str) -> FencedError:
    """Make the error of a broker that has lost its queue."""
    return FencedError(
        f"queue {url}: expected to be its only broker, found that another one has taken it: open it again to take it"
        f" back"
    )


class BrokerFence:
    """Checks that the queue is still the broker's, by the log's manifest, beside the broker: it waits for no store.

    It does so every ``FENCE_CHECK_S`` seconds of use. Queries are answered only while the log is known to have been the
    broker's ``FENCE_CHECK_S`` seconds ago; else they are held until the next check is done.
    """

    def __init__(self, reader: LogReader, executor: Executor, runtime: Runtime, inbox: Inbox) -> None:
        self._reader = reader
        self._executor = executor
        self._runtime = runtime
        self._inbox = inbox
        self._checked_s = self._known_s = runtime.monotonic_s()
        self._check: Future[int] | None = None
        self._held: list[QueuedCall] = []
        # What was held until a check that is done.
        self._freed: list[QueuedCall] = []

    def known(self, at_s: float) -> None:
        """Take note that the log was the broker's at a time, by the monotonic clock."""
        self._known_s = max(self._known_s, at_s)

    def goes_on(self, end: int) -> bool:
        """Tell whether the log went on behind ``end`` a moment ago; LogReplacedError if its name leads to another."""
        if self._check is None:
            if self._runtime.monotonic_s() - self._checked_s >= FENCE_CHECK_S:
                self._begin()
            return False
        if not self._check.done():
            return False
        check, self._check = self._check, None
        try:
            found = check.result()
        except LogReplacedError:
            raise
        except LogError as error:
            # What is wrong is reported to those who ask, and to those who want an append.
            self.give_up(error)
            return False
        self.known(self._checked_s)
        # However long it took: of a slow store no check would be recent enough.
        self._freed, self._held = [*self._freed, *self._held], []
        return found > end

    def _begin(self) -> None:
        self._checked_s = self._runtime.monotonic_s()
        self._check = self._executor.submit(lambda: self._reader.manifest().next.position.offset)
        self._check.add_done_callback(lambda _: self._inbox.wake())

    def admit(self, calls: list[QueuedCall], *, last: bool) -> list[QueuedCall]:
        """Return the calls that can be done now, those that were held before among them; with the ``last`` turn all."""
        freed, self._freed = self._freed, []
        if last or self._runtime.monotonic_s() - self._known_s < FENCE_CHECK_S:
            held, self._held = self._held, []
            return [*freed, *held, *calls]
        for call in calls:
            if isinstance(call.operation, Query):
                self._held.append(replace(call, num_bytes=0))
                self._inbox.done(call.num_bytes)
        if self._held and self._check is None:
            self._begin()
        return [*freed, *(call for call in calls if not isinstance(call.operation, Query))]

    @property
    def holds(self) -> bool:
        """Whether queries are held."""
        return bool(self._held)

    def give_up(self, error: Exception) -> None:
        """Give those that are held an error."""
        held, self._held, self._freed = [*self._freed, *self._held], [], []
        for call in held:
            complete(call.future, None, error)


# Tries to take a queue, each with as many retries as an append has.
_TAKES_MAX = 30
# Tries to take it as it was loaded: a broker that appends all the time makes each of them fail.
_AS_LOADED_MAX = 3


def acquire(writer: LogWriter, token: bytes, loader: QueueLoader) -> LoadedQueue:
    """Load a queue, and take it by appending the token; return it as it is then.

    It is loaded first: one that cannot be loaded is left to the broker that has it.
    """
    loaded = loader.load()
    for _ in range(_AS_LOADED_MAX):
        try:
            position = writer.append(token, key=BROKER_KEY, expect_next=loaded.end)
        except (ConditionNotMetError, UnknownDurabilityError):
            loaded = loader.load()
            if loaded.broker == token:
                return loaded
        else:
            return loaded.acquired(token, position.timestamp_us)
    for _ in range(_TAKES_MAX):
        with contextlib.suppress(ContentionError):
            writer.append(token, key=BROKER_KEY)
            return loader.load()
    writer.append(token, key=BROKER_KEY)
    return loader.load()


def acquire_again(writer: LogWriter, token: bytes, loader: QueueLoader, url: str) -> None:
    """Append the token where the queue is known to be still its own; FencedError when another broker has taken it.

    An append of unknown outcome cannot land behind that record.
    """
    for tried in range(1, _TAKES_MAX + 1):
        broker, end = loader.broker()
        if broker != token:
            raise fenced(url)
        try:
            writer.append(token, key=BROKER_KEY, expect_next=end)
        except ConditionNotMetError:
            # Such an append was quicker, or another writer.
            if tried == _TAKES_MAX:
                raise
        else:
            return


# What each operation does to the queue, and returns. A LogError refuses it: nothing was changed.
_APPLIED: dict[type, Callable[[QueueState, Any, Turn], Any]] = {
    operations.Enqueue: lambda state, wanted, turn: state.enqueue(wanted.items, turn),
    operations.Release: lambda state, wanted, turn: state.release(wanted.leases, turn),
    operations.GiveBack: lambda state, wanted, turn: state.give_back(wanted.leases, turn),
    operations.Requeue: lambda state, wanted, turn: state.requeue(wanted, turn),
    operations.Extend: lambda state, wanted, turn: state.extend(wanted.id, wanted.token, wanted.lease_s, turn),
    operations.Reclaim: lambda state, wanted, turn: state.reclaim(wanted.ids, turn),
    operations.Bury: lambda state, wanted, turn: state.bury(wanted.id, wanted.token, turn),
    operations.Kick: lambda state, wanted, turn: state.kick(wanted.count, wanted.ids, turn),
    operations.Define: lambda state, wanted, turn: state.define(wanted.definition, turn),
    Query: lambda state, wanted, turn: wanted.read(state, turn.now_ms),
}


# The records and bytes of one turn: it becomes one fragment.
_TURN_RECORDS = 20_000
_TURN_BYTES = 8 * 2**20
_VALUE_READERS = 4
# The longest sleep while callers wait: the wall clock may be put forward.
_NAP_S_MAX = 1.0
# The queue's lead over the wall clock that is reported: more than clocks and slow requests explain.
_AHEAD_MS = 600_000
_PREFETCH_EVERY_S = 0.2
# The pause between two looks at a checkpoint that is encoded, and between two tries to load the queue.
_PAUSE_S = 0.05
# Records that may follow the newest that says what the queue has come to: the next broker searches for it.
_BEHIND_MAX = 32
# Repetitions of a turn, one after another, because records of others came between.
_AGAIN_MAX = 8


class Broker:
    """One queue in one process."""

    def __init__(
        self, store: ObjectStore, log: str, options: QueueOptions, runtime: Runtime, *, without_damaged: bool
    ) -> None:
        self.url = f"{store.url}/{log}"
        self._store, self._log = store, log
        self._options, self._runtime = options, runtime
        self._token = self._new_token()
        # Before the manifest is read: when the name leads to another log by then, this writer appends nothing there.
        self._writer = LogWriter.open(store, log, options=options.writer, runtime=runtime)
        self.log_id = self._writer.log_id
        self._loader = QueueLoader(store, log, options.reader, runtime, self.log_id, without_damaged=without_damaged)
        self.values = ValueCache(self._loader.reader, options.cache_bytes_max, runtime, self.url)
        self._cursors = CursorStore(store, log, runtime=runtime, log_id=self.log_id)
        self._readers = runtime.executor("wal3-queue-values", _VALUE_READERS)
        self._aside = runtime.executor("wal3-queue-checkpoint", 1)
        self.inbox = Inbox(options.bytes_waiting_max, self.url, runtime, self.is_here)
        self._fence = BrokerFence(self._loader.reader, self._readers, runtime, self.inbox)
        self.line = Line(runtime)
        self._ahead: Future[None] | None = None
        self._prefetch_again_s = 0.0
        self._clock = QueueClock(runtime)
        # Whether memory is what the log has; if not, whether an append may still land, and how often in a row one met
        # records of others.
        self._sound, self._undetermined, self._num_again = True, False, 0
        self._sealed: SealedError | None = None
        # Before the queue is taken: a cursor of something else fails this open, and no broker that works.
        witness = self._cursors.load(QUEUE_CURSOR, Owner.QUEUE)
        try:
            loaded = acquire(self._writer, self._token, self._loader)
        except SealedError as error:
            # It is read, and changed no more.
            self._sealed, loaded = error, self._loader.load()
        else:
            keep_uncollected(store, log, runtime, self.log_id)
        self._begin(loaded)
        if witness is None and self._sealed is None:
            # Nothing was kept from key compaction: only a checkpoint from here on counts. Records of others at the end
            # may have a key of the queue's own, which it has not written again yet.
            with contextlib.suppress(CursorConflictError, GarbageCollectedError):
                start = 1 if self._displaced else self._end.offset - self._behind - 1
                self._cursors.create(QUEUE_CURSOR, LogPosition(start, 0), owner=Owner.QUEUE)
            if not self.checkpointer.refuses:
                self.checkpointer.want()
        # A broker waits for the shared workers, so it is none of them.
        self._thread = runtime.start_thread(f"wal3-queue-{log}", self._run)

    def _begin(self, loaded: LoadedQueue, known: QueueState | None = None) -> None:
        """Go on from what the log says; FencedError when another broker has taken the queue."""
        if loaded.broker != self._token and self._sealed is None:
            raise fenced(self.url)
        self._clock.confirm(loaded.time_us)
        self._clock.begin_at(loaded.meta.now_ms)
        loaded.state.begin_leases(self._clock.jumped_ms, known)
        self.state, self._end = loaded.state, LogPosition(loaded.end, 0)
        ahead_ms = self._clock.now_ms() - self._clock.bounded_ms()
        if ahead_ms > _AHEAD_MS and self._sealed is None:
            QUEUE.warning(
                "queue %s: its time is %d s ahead: `wal3 queue repair`, or DelayQueue.repair, sets it back",
                self.url,
                ahead_ms // 1000,
            )
        self._behind, self._displaced = loaded.behind, loaded.displaced
        self.checkpointer = Checkpointer(loaded, self._options, self._aside, self._cursors, self._runtime)

    def want_checkpoint(self) -> Future[None]:
        """Begin a checkpoint with the next turn, as ``Checkpointer.want``."""
        if self._sealed is not None:
            raise self._sealed
        return self.checkpointer.want()

    def is_here(self) -> bool:
        """Whether this is the broker's thread."""
        return self._thread.is_current()

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
        busy = self.checkpointer.busy or bool(self._displaced)
        if (busy and self._sound and self._sealed is None) or self._fence.holds:
            return _PAUSE_S
        if self._num_again:
            return 0.0
        until_s = self.line.left_s()
        if until_s is None:
            return None if self._sound else _NAP_S_MAX
        change_ms = self.state.next_change_ms() if self._sound else None
        if change_ms is not None:
            until_s = min(until_s, (change_ms - self._clock.now_ms()) / MS_PER_S)
        # A store that fails at once is not asked all the time.
        return min(max(until_s, 0.0 if self._sound else _PAUSE_S), _NAP_S_MAX)

    def _take_turn(self, calls: list[QueuedCall], *, last: bool = False) -> None:
        """Do what was asked for, make it durable, and answer."""
        answers = Answers(self.values, self._readers, self.give_back)
        left: list[QueuedCall] = []
        wanted = calls
        self.line.begin_turn()
        try:
            if not self._sound or self._fence.goes_on(self._end.offset):
                self._load_again()
            wanted = calls = self._refuse_sealed(self._fence.admit(calls, last=last))
            turn = self._begin_turn()
            left = self._apply(calls, turn, answers)
            calls = calls[: len(calls) - len(left)]
            self._serve(turn, answers, last=last)
            self._finish_turn(turn, last=last)
        except Exception as error:
            if isinstance(error, ConditionNotMetError) and not self._undetermined and self._num_again < _AGAIN_MAX:
                self._num_again += 1
                calls, left = self._undo(wanted, len(calls))
                return
            self._num_again = 0
            # A purge that goes on with the next turn fails, too: the items that this turn removed may be back.
            begun = [call for call in left[:1] if call.num_removed]
            calls, left = calls + begun, left[len(begun) :]
            waiting = self.line.futures()
            answers.fail([call.future for call in calls if call.future not in waiting], error)
            for waiter in self.line.over(last=last):
                complete(waiter.future, None, error)
            self._fence.give_up(error)
            self.checkpointer.fail(error, last=last)
            # Any other failure passes: the queue is loaded again.
            if isinstance(error, FencedError | LogReplacedError) or not isinstance(error, LogError):
                raise
        else:
            self._num_again = 0
            answers.complete(self.state.created_ms)
            self._prefetch()
        finally:
            self.inbox.put_back(left)
            self.inbox.done(sum(call.num_bytes for call in calls))

    def _begin_turn(self) -> Turn:
        if self._sealed is None and not self._displaced:
            self.checkpointer.begin(self.state, self._end)
        turn = Turn(self._end.offset, self._clock.now_ms())
        self.state.forget_ended()
        self.state.jumped_ms = self._clock.jumped_ms
        if self._sealed is None:
            self.state.end_leases(_TURN_RECORDS // 4, turn)
        return turn

    def _finish_turn(self, turn: Turn, *, last: bool) -> None:
        """Add what the queue itself has to write, and make the turn durable."""
        if self._sealed is not None:
            return
        if self._displaced:
            self._restore_displaced(turn)
        num_changes, num_bytes = len(turn.keys), turn.num_bytes
        self.checkpointer.add_to(turn, wait=last)
        if turn.keys or turn.must_be_durable or self._behind > _BEHIND_MAX or self._clock.wants_confirmation():
            self._commit(turn, num_changes, num_bytes)

    def _restore_displaced(self, turn: Turn) -> None:
        """Write again what records of others are newer than, as much as the turn has room for."""
        for key in sorted(self._displaced.difference(turn.keys)):
            if len(turn.keys) >= _TURN_RECORDS or turn.num_bytes >= _TURN_BYTES:
                break
            if key == DEFINITION_KEY:
                self.state.define(self.state.definition, turn)
                continue
            with contextlib.suppress(UnknownItemError, CorruptError, GarbageCollectedError):
                # Its value may be gone by now, or never have been one.
                _, row, _, _ = self.state.find(id_of(key))
                value = self.values.read([row], self.state.created_ms)[0] if key[:1] == VALUE else None
                self.state.write_again(row.id, value, turn)
                continue
            self._displaced.discard(key)

    def _undo(self, wanted: list[QueuedCall], num_done: int) -> tuple[list[QueuedCall], list[QueuedCall]]:
        """Return the calls that wait in the line now, and those to be done again: nothing of the turn was done."""
        self.line.undo_turn()
        joined = [call for call in wanted[:num_done] if isinstance(call.operation, operations.Dequeue)]
        others = [call for call in wanted[:num_done] if not isinstance(call.operation, operations.Dequeue)]
        return joined, others + wanted[num_done:]

    def _load_again(self) -> None:
        """Load the queue: the log goes on behind what this process knows, or an append failed that may be in it."""
        begun_s = self._runtime.monotonic_s()
        self._sound = False
        if self._undetermined:
            self._writer.close()
            self._writer = LogWriter.open(self._store, self._log, options=self._options.writer, runtime=self._runtime)
            try:
                acquire_again(self._writer, self._token, self._loader, self.url)
            except SealedError as error:
                # No append can land behind the seal.
                self._sealed = error
        earlier = self.checkpointer
        self._begin(self._loader.load(), self.state)
        self.checkpointer.take_over(earlier)
        self._fence.known(begun_s)
        self._sound, self._undetermined = True, False

    def _apply(self, calls: list[QueuedCall], turn: Turn, answers: Answers) -> list[QueuedCall]:
        """Apply operations until the turn is full; return those that are left."""
        for index, call in enumerate(calls):
            if index and (len(turn.keys) >= _TURN_RECORDS or turn.num_bytes >= _TURN_BYTES):
                return calls[index:]
            future = call.future
            if isinstance(call.operation, operations.Dequeue):
                self.line.join(call.operation, future)
                # It gets items that are there now: those enqueued later are for later callers, too.
                self._serve(turn, answers, waits=True)
            elif not future.running() and not future.set_running_or_notify_cancel():
                # Cancelled before its turn: it is not done.
                continue
            elif isinstance(call.operation, operations.Purge | operations.Retime):
                begun = self._go_on(call, turn)
                if isinstance(begun, QueuedCall):
                    return [begun, *calls[index + 1 :]]
                answers.add(future, begun)
            else:
                try:
                    answers.add(future, _APPLIED[type(call.operation)](self.state, call.operation, turn))
                except LogError as error:
                    answers.add(future, error)
        return []

    def _go_on(self, call: QueuedCall, turn: Turn) -> QueuedCall | int:
        """Do a part of an operation on many items; return the call if it goes on with the next turn, or its result."""
        room = max(1, (_TURN_RECORDS - len(turn.keys)) // 2)
        if isinstance(call.operation, operations.Purge):
            num_done = self.state.purge(call.operation.states, room, turn)
        else:
            # The same one in all turns: it tells what an earlier one has retimed.
            now_ms = self._clock.bounded_ms() if call.at_ms is None else call.at_ms
            if now_ms >= turn.now_ms:
                return call.num_removed
            call = replace(call, at_ms=now_ms)
            num_done = self.state.retime(room, now_ms, turn)
            if num_done < room:
                # Last of all: as long as the queue's time is further, a call that is repeated finds the others.
                self._clock.go_back(now_ms)
                turn.now_ms, turn.must_be_durable = now_ms, True
        num_removed = call.num_removed + num_done
        return replace(call, num_removed=num_removed) if num_done == room else num_removed

    def _refuse_sealed(self, calls: list[QueuedCall]) -> list[QueuedCall]:
        """Refuse all but queries if the queue is sealed; return what is left."""
        error = self._sealed
        if error is None:
            return calls
        for waiter in self.line.over(last=True):
            complete(waiter.future, None, error)
        for call in calls:
            if not isinstance(call.operation, Query):
                self.inbox.done(call.num_bytes)
                complete(call.future, None, error)
        return [call for call in calls if isinstance(call.operation, Query)]

    def _serve(self, turn: Turn, answers: Answers, *, waits: bool = False, last: bool = False) -> None:
        """Hand items to those who wait, first come first served; unless it ``waits``, end what has waited enough."""
        while (waiter := self.line.first()) is not None:
            if len(turn.keys) >= _TURN_RECORDS or not self.state.head(1, turn.now_ms):
                break
            self.line.leave()
            # Its caller may give up until it is answered: then what is handed out here is given back.
            wanted = waiter.operation
            count = wanted.count
            if wanted.bytes_max is not None:
                count = len(fitting(self.state.head(count, turn.now_ms), wanted.bytes_max))
            answers.add_leases(
                waiter.future, self.state, self.state.lease(count, wanted.lease_s, self._new_token, turn)
            )
        if waits or (len(turn.keys) >= _TURN_RECORDS and not last):
            # A turn that is full leaves items to those who wait, for the next one.
            return
        for waiter in self.line.over(last=last):
            answers.add_leases(waiter.future, self.state, [])

    def give_back(self, operation: operations.GiveBack) -> None:
        """Put items back with the next turn; if that fails, they come back when their leases end. Never waits."""
        self.inbox.put_back([QueuedCall(operation, Outcome(), 0)])
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
        self._undetermined = True
        begun_s = self._runtime.monotonic_s()
        records = [Message(body, key) for key, body in zip(turn.keys, turn.bodies, strict=True)]
        try:
            position = self._writer.append_many(records, expect_next=turn.start)
        except ConditionNotMetError:
            # It is certain: whether another broker has the queue, or something else has appended, the log says.
            self._undetermined = False
            raise
        self._sound, self._undetermined = True, False
        self._behind = 0
        if self._displaced:
            self._displaced.difference_update(turn.keys)
        self._fence.known(begun_s)
        self._clock.confirm(position.timestamp_us)
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
        while self._num_again or (self.checkpointer.busy and self._sound and self._sealed is None):
            self._take_turn(self.inbox.take(0), last=True)
        self._end_threads()

    def _end_threads(self) -> None:
        self._writer.close()
        self._readers.shutdown(wait=False)
        self._aside.shutdown(wait=True)

    def _give_up(self, error: BaseException) -> None:
        """Give all that wait an error, and take no more."""
        reason = error if isinstance(error, Exception) else FencedError(f"queue {self.url}: its broker ended")
        self.inbox.close(reason)
        over = [waiter.future for waiter in self.line.over(last=True)]
        for future in (*(call.future for call in self.inbox.take(0)), *over):
            complete(future, None, reason)
        self._fence.give_up(reason)
        self.checkpointer.give_up(reason)
        self._end_threads()
