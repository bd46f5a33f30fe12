"""Ctrl-C and SIGTERM as a command that writes takes them: noted when they come, and looked at between two steps.

Nothing is raised where they come: what a step has handed over would not be known then. So no step waits
longer than ``PAUSE_S`` seconds.
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
    """Takes both signals within a ``with`` block; one that the parent has switched off stays so."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._received: list[int] = []

    def __enter__(self) -> Self:
        # Another thread than the main one takes no signals.
        with contextlib.suppress(ValueError):
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type] # as it was returned

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)

    @property
    def stop(self) -> bool:
        """Whether somebody wants the command to end."""
        return bool(self._received)

    @property
    def at_once(self) -> bool:
        """Whether somebody wants that without waiting for anything: by a second signal."""
        return len(self._received) > 1

    def wait(self, future: Future[Any]) -> bool:
        """Wait until a future has its outcome; False when that is not to be waited for any more."""
        while not future.done():
            if self.at_once:
                return False
            with contextlib.suppress(TimeoutError):
                future.exception(PAUSE_S)
        return True

    @property
    def failure(self) -> Failure:
        """How the command ends by the signal that came first."""
        if self._received[:1] == [signal.SIGTERM]:
            return TerminatedFailure("terminated")
        return InterruptedFailure("interrupted")
