"""Saves what a subscription has done: after some acknowledgements, or some time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from wal3_core.errors import CursorConflictError, LogError, UnavailableError

if TYPE_CHECKING:
    from wal3_core.runtime import Lock, Runtime, Timer
    from wal3_core.views.feed.outstanding import Outstanding
    from wal3_core.views.feed.saved_subscription import SavedSubscription
    from wal3_core.views.feed.subscription_options import SubscriptionOptions

# A save is refused when another process has saved meanwhile.
_SAVES_MAX = 256
# How long a save waits at least, in seconds, after one that the store did not answer.
_AGAIN_S_MIN = 1.0


class Saver:
    """Saves one subscription; ``lock`` guards what is outstanding."""

    def __init__(
        self,
        saved: SavedSubscription,
        outstanding: Outstanding,
        lock: Lock,
        *,
        options: SubscriptionOptions,
        runtime: Runtime,
    ) -> None:
        self.saved = saved
        self.outstanding = outstanding
        self.lock = lock
        self.options = options
        self.runtime = runtime
        self._saving = runtime.lock()
        self._unsaved = 0
        self._timer: Timer | None = None
        self._failure: LogError | None = None
        self._closed = False

    def raise_failure(self) -> None:
        """Raise the error of a save that no call has waited for, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def changed(self, num_acks: int) -> None:
        """Save at once if there are enough acknowledgements, else when it is time."""
        with self.lock:
            self._unsaved += num_acks
            due = self._unsaved >= self.options.save_acks_max or self.options.save_s_max == 0
            # An acknowledgement after the end is not left to a timer.
            due = due or (self._closed and num_acks > 0)
            if not due:
                self._set_timer(self.options.save_s_max)
        if due:
            self.save()

    def _set_timer(self, pause_s: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = self.runtime.call_later(pause_s, self._save_by_time)

    def save(self, *, looks: bool = False) -> None:
        """Save now. CursorConflictError if the subscription was removed meanwhile.

        With ``looks``, that is found, and what others have saved, even if there is nothing to save.
        """
        try:
            self._save(looks=looks)
        except UnavailableError:
            # There may be no other call.
            with self.lock:
                self._set_timer(max(_AGAIN_S_MIN, self.options.save_s_max))
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
                    if self.saved.save(*floor, progress) or not looks:
                        return
                self._take_over()
                looks = False
            message = f"subscription: expected to be saved in {_SAVES_MAX} tries, found another version each time"
            raise CursorConflictError(message)

    def _take_over(self) -> None:
        """Unite what another process has done with what this one has; begin again where the subscription was put."""
        before = self.saved.state.progress
        onwards = self.saved.look_again()
        position, progress = self.saved.position, self.saved.state.progress
        with self.lock:
            if onwards:
                self.outstanding.take_over(position, progress, before)
            else:
                self.outstanding.begin_again(position, progress)

    def _save_by_time(self) -> None:
        with self.lock:
            self._timer = None
        try:
            self.save()
        except LogError as error:
            self._failure = error

    def close(self) -> None:
        """Save for the last time."""
        with self.lock:
            self._closed = True
        self.save()
