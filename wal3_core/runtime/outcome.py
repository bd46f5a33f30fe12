"""A future that stays usable when a thread that waits for it is interrupted."""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


class _Final(Generic[T]):
    """What an outcome was set to: a result, or an error instead."""

    __slots__ = ("error", "result")

    def __init__(self, result: T | None, error: BaseException | None) -> None:
        self.result = result
        self.error = error


class Outcome(Future[T]):
    """A future that stays usable when a thread that waits for it is interrupted: setting it never hangs.

    A waiting thread holds no lock, so a signal handler that runs meanwhile may wait for the same future, or others.
    It cannot be cancelled. ``concurrent.futures.wait`` and ``as_completed`` work on it, but without that promise:
    they take the standard library's lock, and an interrupt can leave it locked.
    """

    _final: ClassVar[_Final[object] | None] = None

    def __init__(self) -> None:
        super().__init__()
        # Changed by single calls that are not Python code, as all that an interrupt can leave half done.
        self._sleepers: list[threading.Lock] = []
        self._calls: list[Callable[[], object]] = []

    def cancel(self) -> bool:
        """Refuse: the work may already be on its way."""
        return False

    def cancelled(self) -> bool:
        """Return False: it cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Whether its outcome is not known yet."""
        return not self.done()

    def done(self) -> bool:
        """Whether it has its outcome, which is set in one step."""
        return self._final is not None

    def result(self, timeout: float | None = None) -> T:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        final = self._await(timeout)
        if final.error is None:
            return cast("T", final.result)
        try:
            raise final.error
        finally:
            # The error's traceback refers to this frame.
            del self, final

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        return self._await(timeout).error

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Call a function with this future once it has its outcome; at once if it has."""
        call = partial(fn, self)
        self._calls.append(call)
        if self.done():
            # Unless the thread that set it has found the call: then it makes it.
            with contextlib.suppress(ValueError):
                self._calls.remove(call)
                self._call(call)

    def set_result(self, result: T) -> None:
        """Set it to a result; InvalidStateError if it has an outcome."""
        self._settle(_Final(result, None))
        super().set_result(result)
        self._call_back()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set it to an error; InvalidStateError if it has an outcome."""
        self._settle(_Final(None, exception))
        super().set_exception(exception)
        self._call_back()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x} {'done' if self.done() else 'running'}>"

    def _settle(self, final: _Final[T]) -> None:
        # One call decides which of two threads sets it.
        if self.__dict__.setdefault("_final", final) is not final:
            raise InvalidStateError(f"{self!r}: expected an outcome that is set once")
        while self._sleepers:
            with contextlib.suppress(IndexError):
                self._sleepers.pop().release()

    def _call_back(self) -> None:
        held = _HELD.get()
        if held is None:
            self._call_each()
        elif self._calls:
            held.append(self._call_each)

    def _call_each(self) -> None:
        while self._calls:
            with contextlib.suppress(IndexError):
                self._call(self._calls.pop(0))

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001 - a caller's; the other callers' are still to be called
            _LOG.exception("exception calling callback for %r", self)

    def _await(self, timeout: float | None) -> _Final[T]:
        if not self.done():
            self._sleep(timeout)
        final = self._final
        if final is None:
            raise TimeoutError
        return cast("_Final[T]", final)

    def _sleep(self, timeout: float | None) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        try:
            # Checked after the append: it was set before, or setting it finds the sleeper.
            if not self.done():
                sleeper.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            with contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)
