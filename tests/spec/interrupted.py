"""A program that interrupts a call in the main thread at every place where Python can, one after another.

CPython checks for signals when a function begins, when a C function has returned, and after a backward jump;
Ctrl-C raises only there. The trace raises at the following instruction, so it leaves out a place whose following
instruction has another handler. Prints the number of places.
"""

from __future__ import annotations

import contextlib
import dis
import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import CodeType, FrameType

from wal3_core import (
    ClosedError,
    DelayQueue,
    Delivery,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Fleet,
    FleetOptions,
    InvalidRequestError,
    KeyedLog,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    SubscriptionOptions,
    WriterOptions,
)
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import Buffer, PutOutcome

CHECKED = {"RESUME", "PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
PLACES_MAX = 5000
ANSWER_S_MAX = 30


def handler(code: CodeType, offset: int) -> int | None:
    """The handler within its function of an exception raised at an instruction."""
    entries = dis._parse_exception_table(code)
    return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)


class Interrupter:
    """Raises KeyboardInterrupt at the n-th place."""

    def __init__(self, number: int) -> None:
        self.left = number
        self._before: dict[FrameType, tuple[str, int]] = {}

    def trace(self, frame: FrameType, event: str, _: object) -> Callable[..., object]:
        # Python 3.13 traces a frame's instructions only if it has a trace function by then.
        frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self.trace, True, False
        if event == "call" and frame.f_back in self._before and frame.f_code.co_name != "__init__":
            # Returning from a Python function does not check for signals; a class is called through C.
            del self._before[frame.f_back]
        if event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            before, at = self._before.get(frame, ("", 0))
            self._before[frame] = name, frame.f_lasti
            checked = before in CHECKED or before.startswith("POP_JUMP_BACKWARD")
            # Either of the two instructions of a call in 3.11 may be the one that calls.
            checked = checked and (before, name) != ("PRECALL", "CALL")
            if checked and handler(frame.f_code, at) == handler(frame.f_code, frame.f_lasti):
                self.left -= 1
                if self.left == 0:
                    self.come()
        return self.trace

    def come(self) -> None:
        """Act at the chosen place."""
        raise KeyboardInterrupt

    def interrupts(self, action: Callable[[], object]) -> bool:
        """Whether the action was interrupted; False when it has fewer places."""
        # Python 3.12 traces instructions only if a frame asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self.trace)
        try:
            action()
        except KeyboardInterrupt:
            return True
        except RuntimeError as error:
            # A wait to reacquire a lock was interrupted while the lock was not held.
            if not isinstance(error.__context__, KeyboardInterrupt):
                raise
            return True
        finally:
            sys.settrace(None)
        return False


class Caller(Interrupter):
    """Makes a call at the n-th place, as a signal handler does; the call may be refused there."""

    def __init__(self, number: int, call: Callable[[], object]) -> None:
        super().__init__(number)
        self._call = call

    def come(self) -> None:
        with contextlib.suppress(InvalidRequestError):
            self._call()


def answered(action: Callable[[], object]) -> None:
    """Run an action in another thread; it must not hang."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(ANSWER_S_MAX)
    assert not thread.is_alive(), "hung"


class HeldStore(MemoryStore):
    """Delays uploads of fragments for a moment while switched on."""

    gate: threading.Event | None = None

    def create(self, path: str, data: Buffer) -> PutOutcome:
        if self.gate is not None and "/log/" in path:
            self.gate.wait(ANSWER_S_MAX)
        return super().create(path, data)

    def hold(self) -> None:
        self.gate = threading.Event()
        threading.Timer(0.02, self.gate.set).start()


def append_and_wait(writer: LogWriter) -> None:
    writer.append(b"interrupted")
    writer.flush()


def append_behind_others(writer: LogWriter) -> None:
    futures = [writer.submit(b"x" * 40) for _ in range(5)]
    writer.append(b"interrupted")
    futures[-1].result()


def append_and_follow(writer: LogWriter, reader: LogReader) -> None:
    writer.append(b"interrupted")
    for _ in reader.follow(idle_s=0.001):
        pass


def survives(kind: str, number: int) -> bool:
    """Interrupt a call at its n-th place and check that everything still works; False when there is no such place."""
    # A writer and workers for each place: the first call has the most to do.
    with ThreadRuntime(workers_max=4) as runtime:
        store = HeldStore(runtime)
        options = WriterOptions(bytes_held_max=1, batch_age_s_max=0.001)
        writer = LogWriter.open_or_create(store, "a", runtime=runtime, options=options)
        reader = LogReader.open(store, "a", runtime=runtime)
        submitted: list[Future[LogPosition]] = []
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: append_and_wait(writer),
            "held": lambda: append_behind_others(writer),
            "flush": writer.flush,
            "follow": lambda: append_and_follow(writer, reader),
        }
        if kind == "flush":
            store.hold()
            submitted.append(writer.submit(b"interrupted"))
            # Only then does the flush wake a worker.
            while writer._loop.waker.asked:
                time.sleep(0.0001)
        interrupted = Interrupter(number).interrupts(calls[kind])
        for future in submitted:
            future.result(ANSWER_S_MAX)
        acknowledged: list[int] = []
        answered(lambda: acknowledged.append(writer.append(b"other").offset))
        answered(lambda: list(reader.records()))
        answered(writer.close)
        bodies = [record.body for record in reader.records()]
        assert [bodies[offset - 1] for offset in acknowledged] == [b"other"], f"{kind} {number}: {bodies}"
        assert bodies.count(b"interrupted") <= 1
        assert interrupted or bodies.count(b"interrupted") == 1
    return interrupted


def fleet_survives(kind: str, number: int) -> bool:
    """Interrupt a fleet's append at its n-th place; False when there is no such place.

    Whatever the append still counted would keep the only place for an open log from the other log for ever.
    """
    with ThreadRuntime(workers_max=4) as runtime:
        store = MemoryStore(runtime)
        options = FleetOptions(creates=True, logs_open_max=1, bytes_held_max=3000)
        fleet = Fleet.open(store, options=options, runtime=runtime)
        if kind == "fleet-again":
            fleet.append("a", b"first")
        interrupted = Interrupter(number).interrupts(lambda: fleet.append("a", b"interrupted"))
        acknowledged: list[int] = []
        answered(lambda: acknowledged.append(fleet.append("b", b"other").offset))
        answered(fleet.close)
        assert acknowledged == [1], f"{kind} {number}"
        # A worker counts an append after its caller has the answer.
        until_s = time.monotonic() + ANSWER_S_MAX
        while (stats := fleet.stats()).bytes_held or stats.appends_waiting:
            assert time.monotonic() < until_s, f"{kind} {number}: {stats}"
            time.sleep(0.001)
    return interrupted


def feed_survives(kind: str, number: int) -> bool:
    """Interrupt a follower of a feed at its n-th place; False when there is no such place.

    The other followers of the log wait for what it has begun to fetch, and a subscription still delivers all messages.
    """
    with ThreadRuntime(workers_max=4) as runtime:
        store = MemoryStore(runtime)
        with FeedWriter.open_or_create(store, "a", runtime=runtime) as writer:
            for message in range(3):
                writer.publish("t", message).result(ANSWER_S_MAX)
        options = SubscriptionOptions(ack_wait_s=0.02, prefetch_max=2)
        subscription = FeedSubscription.open(store, "a", "s", options=options, runtime=runtime)
        reader = FeedReader.open(store, "a", runtime=runtime)
        others = [FeedReader.open(store, "a", runtime=runtime) for _ in range(2)]
        calls: dict[str, Callable[[], object]] = {
            "feed-reader": lambda: reader.recv(0),
            "feed-subscription": lambda: acknowledge_two(subscription),
        }
        interrupted = Interrupter(number).interrupts(calls[kind])
        received: list[list[object]] = []
        for other in others:
            answered(lambda other=other: received.append([other.recv(ANSWER_S_MAX).message for _ in range(3)]))
        assert received == [[0, 1, 2]] * 2, f"{kind} {number}"
        acknowledged: set[object] = set()
        answered(lambda: acknowledge_rest(subscription, acknowledged))
        answered(subscription.close)
        assert 2 in acknowledged, f"{kind} {number}"
        assert subscription.floor == 4, f"{kind} {number}"
    return interrupted


def acknowledge_two(subscription: FeedSubscription) -> None:
    items = [subscription.recv(0), subscription.recv(0)]
    for item in items:
        assert item is not None
        subscription.acknowledge(item)
    subscription.save()


def acknowledge_rest(subscription: FeedSubscription, acknowledged: set[object]) -> None:
    until_s = time.monotonic() + ANSWER_S_MAX / 2
    while (item := subscription.recv(0.03)) is not None or 2 not in acknowledged or len(subscription._outstanding):
        assert time.monotonic() < until_s, "expected all messages to be delivered"
        if isinstance(item, Delivery):
            subscription.acknowledge(item)
            acknowledged.add(item.message)


def queue_survives(kind: str, number: int) -> bool:
    """Interrupt a queue's caller, or let a signal handler call the queue then; False when there is no such place."""
    with ThreadRuntime(workers_max=4) as runtime:
        store = MemoryStore(runtime)
        DelayQueue.create(store, "a", runtime=runtime)
        queue = DelayQueue.open(store, "a", runtime=runtime)
        queue.enqueue(b"first")
        if kind == "queue-closed":
            caller = Caller(number, queue.close)
            with contextlib.suppress(ClosedError):
                caller.interrupts(lambda: queue.enqueue(b"interrupted"))
            answered(queue.close)
            return caller.left <= 0
        calls: dict[str, Callable[[], object]] = {
            "queue-enqueue": lambda: queue.enqueue(b"interrupted"),
            "queue-dequeue": lambda: queue.dequeue(timeout_s=0.01),
        }
        interrupted = Interrupter(number).interrupts(calls[kind])
        answered(lambda: queue.enqueue(b"other"))
        answered(queue.close)
    return interrupted


def keyed_survives(kind: str, number: int) -> bool:
    """Interrupt a conditional append at its n-th place; False when there is no such place."""
    with ThreadRuntime(workers_max=4) as runtime:
        store = MemoryStore(runtime)
        log = KeyedLog.open_or_create(store, "a", runtime=runtime)
        interrupted = Interrupter(number).interrupts(lambda: log.append(b"k", b"interrupted", expect_tail=0))
        closed: list[object] = []
        answered(lambda: log.append(b"l", b"other", expect_tail=0))
        answered(lambda: closed.append(log.close()))
        bodies = [record.body for record in LogReader.open(store, "a", runtime=runtime).records()]
        # The interrupt is its caller's alone.
        assert closed, f"{kind} {number}: expected the log to be closed, found an error"
        assert sorted(bodies) in ([b"interrupted", b"other"], [b"other"]), f"{kind} {number}: {bodies}"
    return interrupted


def goes_on(handled: str, number: int) -> bool:
    """Let a signal handler call a writer at the n-th place of an append; False when there is no such place."""
    with ThreadRuntime(workers_max=4) as runtime:
        store = HeldStore(runtime)
        options = WriterOptions(bytes_held_max=1, batch_age_s_max=0.001)
        writer = LogWriter.open_or_create(store, "a", runtime=runtime, options=options)
        calls: dict[str, Callable[[], object]] = {
            "stats": writer.stats,
            "submit": lambda: writer.submit(b"handler"),
            "append": lambda: writer.append(b"handler"),
            "flush": writer.flush,
            "close": writer.close,
        }
        caller = Caller(number, calls[handled])
        with contextlib.suppress(ClosedError):
            caller.interrupts(lambda: append_and_wait(writer))
        answered(writer.close)
        bodies = [record.body for record in LogReader.open(store, "a", runtime=runtime).records()]
        assert handled == "close" or bodies.count(b"interrupted") == 1, f"{handled} {number}: {bodies}"
    return caller.left <= 0


def main(kind: str, every: int) -> None:
    handled = kind.removeprefix("handler:")
    kinds: dict[str, Callable[[str, int], bool]] = {
        "fleet": fleet_survives,
        "feed": feed_survives,
        "queue": queue_survives,
        "keyed": keyed_survives,
    }
    at = kinds.get(kind.partition("-")[0], survives)
    for number in range(1, PLACES_MAX, every):
        if not (at(kind, number) if handled == kind else goes_on(handled, number)):
            print(number - 1)
            return
    raise AssertionError("expected an end")


if __name__ == "__main__":
    # Print the stacks of whatever hangs.
    faulthandler.dump_traceback_later(ANSWER_S_MAX * 3, repeat=True)
    main(sys.argv[1], int(sys.argv[2]))
