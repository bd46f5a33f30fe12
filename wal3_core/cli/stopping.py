"""Ctrl-C and SIGTERM as a command that writes takes them: at once while it waits for input, else between two steps."""

from __future__ import annotations

import contextlib
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from wal3_core.cli.failures import Failure, InterruptedFailure, TerminatedFailure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StoppedError(KeyboardInterrupt):
    """Somebody wants the command to end."""


class StopSignals:
    """Takes both signals within a ``with`` block; one that the parent has switched off stays so."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._received: list[int] = []
        self._waiting = False

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
        # The second one does not wait for anything.
        if self._waiting or len(self._received) > 1:
            raise StoppedError

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise StoppedError in the block when a signal comes, or when one came before it."""
        self._waiting = True
        try:
            if self._received:
                raise StoppedError
            yield
        finally:
            self._waiting = False

    @property
    def failure(self) -> Failure:
        """How the command ends by the signal that came first."""
        if self._received[:1] == [signal.SIGTERM]:
            return TerminatedFailure("terminated")
        return InterruptedFailure("interrupted")
