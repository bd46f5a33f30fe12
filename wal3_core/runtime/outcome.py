"""A future that stays usable when a thread that waits for it is interrupted.

``map_ahead`` and ``later`` do work on the shared workers, ahead of the caller; a ``Cache`` loads each value once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, TypeVar, cast

from wal3_core.errors import UnavailableError
from wal3_core.runtime.port import Runtime
from wal3_core.workers import COMMON, Share

T = TypeVar("T")

# As a Future of the standard library does: it logs there what a callback raises.
_LOG = logging.getLogger("concurrent.futures")

# Where this thread puts the callbacks of the outcomes it sets, instead of calling them at once.
_HELD: ContextVar[list[Callable[[], None]] | None] = ContextVar("wal3-held-callbacks", default=None)


@contextlib.contextmanager
def callbacks_held(held: list[Callable[[], None]]) -> Iterator[None]:
    """Append the callbacks of outcomes that are set in the block to ``held`` instead of calling them."""
    before = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(before)


class Outcome(Future[T]):
    """A future that stays usable when a thread that waits for it is interrupted: setting it never hangs.

    A waiting thread holds no lock, so a signal handler that runs meanwhile may wait for the same future, or others.
    It cannot be cancelled. ``concurrent.futures.wait`` and ``as_completed`` work on it, but without that promise:
    they take the standard library's lock, and an interrupt can leave it locked.
    """

    # In an outcome's own ``__dict__``, where single calls that are not Python code change them: an interrupt leaves
    # nothing half done. They are made when they are needed: most outcomes are never waited for.
    # A result, or an error instead: a pair made for this outcome, so that it shows whose it is.
    _final: tuple[object, BaseException | None] | None = None
    _sleepers: Sequence[threading.Lock] = ()
    _calls: Sequence[Callable[[], object]] = ()
    _is_listed = False

    def __init__(self) -> None:
        # Not that of the class above: it makes a lock and a condition, which takes longer than the rest of an append.
        pass

    def cancel(self) -> bool:
        """Refuse: the work may already be on its way."""
        return False

    def cancelled(self) -> bool:
        """Return False: it cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Whether its outcome is not known yet."""
        return not self.done()

    def set_running_or_notify_cancel(self) -> bool:
        """Return True: it was not cancelled."""
        return True

    def done(self) -> bool:
        """Whether it has its outcome, which is set in one step."""
        return self._final is not None

    def result(self, timeout: float | None = None) -> T:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        result, error = self._await(timeout)
        if error is None:
            return cast("T", result)
        try:
            raise error
        finally:
            # The error's traceback refers to this frame.
            del self, error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        return self._await(timeout)[1]

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call a function with this future once it has its outcome; at once if it has."""
        call = partial(fn, self)
        calls = self._own("_calls")
        calls.append(call)
        if self.done():
            # Unless the thread that set it has found the call: then it makes it.
            with contextlib.suppress(ValueError):
                calls.remove(call)
                self._call(call)

    def set_result(self, result: T) -> None:
        """Set it to a result; InvalidStateError if it has an outcome."""
        self._set((result, None))

    def set_exception(self, exception: BaseException | None) -> None:
        """Set it to an error; InvalidStateError if it has an outcome."""
        self._set((None, exception))

    def set_or_rouse(self: Outcome[None]) -> None:
        """Set it to None; if it is set, wake the threads that an interrupted one, which set it, has left asleep."""
        with contextlib.suppress(InvalidStateError):
            self.set_result(None)
            return
        self._rouse()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x} {'done' if self.done() else 'running'}>"

    def _set(self, final: tuple[object, BaseException | None]) -> None:
        # One call decides which of two threads sets it.
        if self.__dict__.setdefault("_final", final) is not final:
            raise InvalidStateError(f"{self!r}: expected an outcome that is set once")
        if self._sleepers:
            self._rouse()
        if self._is_listed:
            self._announce()
        if self._calls:
            held = _HELD.get()
            if held is None:
                self._call_each()
            else:
                held.append(self._call_each)

    def _rouse(self) -> None:
        for sleeper in tuple(self._sleepers):
            # It may have been woken already; it leaves the list by itself.
            with contextlib.suppress(RuntimeError):
                sleeper.release()

    def _announce(self) -> None:
        """Set it for the standard library's functions over several futures."""
        assert self._final is not None
        result, error = self._final
        # The thread that lists it and the one that sets it may both come here.
        with contextlib.suppress(InvalidStateError):
            if error is None:
                super().set_result(cast("T", result))
            else:
                super().set_exception(error)

    def _list(self) -> None:
        """Make what the class above keeps."""
        # Before it is looked whether it is set: the thread that sets it looks at this one then.
        self._is_listed = True
        made: Future[object] = Future()
        if self.done():
            # An interrupt from here on leaves one that says so.
            made.set_result(None)
        for name, value in vars(made).items():
            self.__dict__.setdefault(name, value)
        if self.done():
            self._announce()

    def _own(self, name: str) -> list[Any]:
        """Return a list of this outcome's, made at the first call."""
        return cast("list[Any]", self.__dict__.get(name) or self.__dict__.setdefault(name, []))

    def _call_each(self) -> None:
        calls = self._own("_calls")
        while calls:
            with contextlib.suppress(IndexError):
                self._call(calls.pop(0))

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a caller's; the other callers' are still to be called
            _LOG.exception("exception calling callback for %r", self)

    def _await(self, timeout: float | None) -> tuple[object, BaseException | None]:
        if not self.done():
            self._sleep(timeout)
        final = self._final
        if final is None:
            raise TimeoutError
        return final

    def _sleep(self, timeout: float | None) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        sleepers = self._own("_sleepers")
        sleepers.append(sleeper)
        try:
            # Checked after the append: it was set before, or setting it finds the sleeper.
            if not self.done():
                sleeper.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            with contextlib.suppress(ValueError):
                sleepers.remove(sleeper)


class _MadeWhenRead:
    """An attribute that the standard library's future makes at once, and an outcome when a function first reads it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, outcome: Outcome[Any], _: object = None) -> object:
        outcome._list()  # noqa: SLF001 - a part of it
        return outcome.__dict__[self._name]


# Not by __getattr__: a class that has one is slower to read, and appends set thousands of outcomes.
for _name in vars(Future()):
    setattr(Outcome, _name, _MadeWhenRead(_name))


class NotifyingOutcome(Outcome[T]):
    """An outcome that calls a function of the library in the thread that sets it, also where callbacks are held.

    So what the library does then waits for no callback of a caller's. The function waits for nothing, and calls no
    caller's code but by setting other outcomes.
    """

    def __init__(self, on_done: Callable[[Future[T]], object]) -> None:
        self._on_done = on_done

    def _set(self, final: tuple[object, BaseException | None]) -> None:
        super()._set(final)
        self._on_done(self)


class CancellableOutcome(Outcome[T]):
    """An outcome that can be cancelled until a thread has begun with it, by ``set_running_or_notify_cancel``."""

    def cancel(self) -> bool:
        """Cancel it, unless it has its outcome or a thread has begun with it; return whether it is cancelled."""
        if not self.done():
            self._decide(is_cancelled=True)
        return self.cancelled()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._final is not None and isinstance(self._final[1], CancelledError)

    def running(self) -> bool:
        """Whether a thread has begun with it, and its outcome is not known yet."""
        return self.__dict__.get("_is_cancelled") is False and not self.done()

    def set_running_or_notify_cancel(self) -> bool:
        """Begin with it; False if it was cancelled."""
        self._decide(is_cancelled=False)
        return not self.cancelled()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds, CancelledError if cancelled."""
        error = super().exception(timeout)
        if isinstance(error, CancelledError):
            raise error
        return error

    def _decide(self, *, is_cancelled: bool) -> None:
        # One call decides; the thread that made it may have been interrupted then.
        if self.__dict__.setdefault("_is_cancelled", is_cancelled):
            with contextlib.suppress(InvalidStateError):
                self.set_exception(CancelledError())


A = TypeVar("A")


def map_ahead(
    runtime: Runtime,
    work: Callable[[A], T],
    items: Iterable[A],
    *,
    count: int,
    share: Share = COMMON,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[T]:
    """Do the work on each item on the shared workers, ``count`` items ahead of the caller; yield results in order.

    ``ready`` as for ``each_ahead``; ``share`` says whose work it is.
    """
    begin = lambda item: partial(runtime.wait, later(runtime, partial(work, item), share))  # noqa: E731 - of one line
    for _, result in each_ahead(items, begin, lambda: count, ready):
        yield result


def each_ahead(
    items: Iterable[A],
    begin: Callable[[A], Callable[[], T]],
    count: Callable[[], int],
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[A, T]]:
    """Yield each item with what ``begin`` loads for it, ``count`` items ahead of the caller, as it says each time.

    While the next item is not ``ready`` (asking for it would block), results are yielded first.
    """
    waiting: deque[tuple[A, Callable[[], T]]] = deque()

    def oldest() -> tuple[A, T]:
        item, wait = waiting.popleft()
        return item, wait()

    for item in items:
        waiting.append((item, begin(item)))
        while waiting and (len(waiting) > count() or not ready()):
            yield oldest()
    while waiting:
        yield oldest()


def later(runtime: Runtime, work: Callable[[], T], share: Share = COMMON) -> Future[T]:
    """Do the work on the shared workers; return its future."""
    future: Outcome[T] = Outcome()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    runtime.spawn(run, share=share)
    return future


class Cache(Generic[T]):
    """Values by key, those used last; they take at most ``bytes_max`` bytes. What is being loaded is loaded once."""

    def __init__(self, runtime: Runtime, bytes_max: int, size_of: Callable[[T], int]) -> None:
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._size_of = size_of
        self._lock = runtime.lock()
        self._held: OrderedDict[Hashable, T] = OrderedDict()
        self._loading: dict[Hashable, Future[T]] = {}
        self._num_bytes = 0

    def get(self, key: Hashable) -> T | None:
        """Return a value that is held."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def keep(self, key: Hashable, value: T) -> None:
        """Hold a value, and drop those that were not used for longest."""
        with self._lock:
            try:
                before = self._held.pop(key, None)
                self._num_bytes += self._size_of(value) - (0 if before is None else self._size_of(before))
                self._held[key] = value
                while self._held and self._num_bytes > self._bytes_max:
                    _, dropped = self._held.popitem(last=False)
                    self._num_bytes -= self._size_of(dropped)
            except BaseException:
                # Interrupted: a sum that stayed too large would leave less room for ever.
                self._num_bytes = sum(map(self._size_of, self._held.values()))
                raise

    def begin(self, key: Hashable, load: Callable[[], T], share: Share | None) -> Callable[[], T]:
        """Begin to load a value, unless it is held or being loaded; return how to wait for it.

        It is loaded on the shared workers; with None for ``share`` in this thread, before this returns. A load that
        another reader began and that failed is repeated: it may have failed for that reader alone.
        """
        self._runtime.check_process()
        future: Outcome[T] = Outcome()
        try:
            with self._lock:
                held = self._held.get(key)
                if held is not None:
                    self._held.move_to_end(key)
                    return lambda: held
                loading = self._loading.setdefault(key, future)
            if loading is not future:
                return partial(self._joined, loading, load)
            task = partial(self._load, key, load, future)
            if share is None:
                task()
            else:
                self._runtime.spawn(task, share=share)
        except BaseException:
            # Interrupted before it began: others that wait for it load it themselves.
            self._forget(key, future)
            with contextlib.suppress(InvalidStateError):
                future.set_exception(UnavailableError("a read was cut short"))
            raise
        return partial(self._runtime.wait, future)

    def _joined(self, loading: Future[T], load: Callable[[], T]) -> T:
        try:
            return self._runtime.wait(loading)
        except Exception:  # noqa: BLE001 - it is raised again below if it concerns this reader
            return load()

    def _load(self, key: Hashable, load: Callable[[], T], future: Outcome[T]) -> None:
        try:
            value = load()
            self.keep(key, value)
        except BaseException as error:
            self._forget(key, future)
            if not isinstance(error, Exception):
                # An interrupt of this thread, which is none of the others that wait.
                future.set_exception(UnavailableError("a read was cut short"))
                raise
            future.set_exception(error)
        else:
            self._forget(key, future)
            future.set_result(value)

    def _forget(self, key: Hashable, future: Outcome[T]) -> None:
        with self._lock:
            if self._loading.get(key) is future:
                del self._loading[key]
