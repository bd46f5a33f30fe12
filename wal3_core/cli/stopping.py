"""Ctrl-C and SIGTERM in a command that writes: recorded when they arrive, and checked between steps.

The handler raises nothing, since it would then be unknown what a step has sent. So no step waits longer
than ``PAUSE_S`` seconds.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, Any, Self

from wal3_core.cli.failures import Failure, InterruptedFailure, TerminatedFailure

if TYPE_CHECKING:
    from concurrent.futures import Future
    from types import FrameType, TracebackType

PAUSE_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Records both signals within a ``with`` block; a signal that the parent process ignores stays ignored."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._received: list[int] = []

    def __enter__(self) -> Self:
        # Only the main thread can install signal handlers.
        with contextlib.suppress(ValueError):
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as it was returned

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    @property
    def stop(self) -> bool:
        """Whether a signal asks the command to end."""
        return bool(self._received)

    @property
    def at_once(self) -> bool:
        """Whether a second signal asks it to end without waiting."""
        return len(self._received) > 1

    def wait(self, future: Future[Any]) -> bool:
        """Wait until a future has its outcome; False when a second signal ends the wait."""
        while not future.done():
            if self.at_once:
                return False
            with contextlib.suppress(TimeoutError):
                future.exception(PAUSE_S)
        return True

    @property
    def failure(self) -> Failure:
        """The failure for the signal that came first."""
        if self._received[:1] == [signal.SIGTERM]:
            return TerminatedFailure("terminated")
        return InterruptedFailure("interrupted")
