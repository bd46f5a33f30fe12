"""Whether another broker has taken a queue: an append shows it at once, turns that append nothing never do.

Without it, calls that wait for an item would wait at a broker that gets none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import FencedError, LogError, LogReplacedError
from wal3_core.views.queue.answering import give
from wal3_core.views.queue.waiting import Look

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from wal3_core.log.read.reader import LogReader
    from wal3_core.runtime import Runtime
    from wal3_core.views.queue.waiting import Call, Inbox

LOOK_S = 5.0


def fenced(url: str) -> FencedError:
    """Make the error of a broker that has lost its queue."""
    return FencedError(
        f"queue {url}: expected to be its only broker, found that another one has taken it: open it again to take it"
        f" back"
    )


class Taken:
    """Looks at the log's manifest every ``LOOK_S`` seconds of use, beside the broker: it waits for no store.

    Questions are answered only while the log is known to have been the broker's ``LOOK_S`` seconds ago; else they are
    held until the next look is done.
    """

    def __init__(self, url: str, reader: LogReader, aside: Executor, runtime: Runtime, inbox: Inbox) -> None:
        self._url = url
        self._reader = reader
        self._aside = aside
        self._runtime = runtime
        self._inbox = inbox
        self._looked_s = self._known_s = runtime.monotonic_s()
        self._look: Future[int] | None = None
        self._held: list[Call] = []
        # What was held until a look that was taken meanwhile.
        self._freed: list[Call] = []

    def known(self, at_s: float) -> None:
        """Take note that the log was the broker's at a time, by the monotonic clock."""
        self._known_s = max(self._known_s, at_s)

    def goes_on(self, end: int) -> bool:
        """Tell whether the log had records from offset ``end`` on a moment ago; end is the broker's own.

        LogReplacedError when the name leads to another log now.
        """
        if self._look is None:
            if self._runtime.monotonic_s() - self._looked_s >= LOOK_S:
                self._begin()
            return False
        if not self._look.done():
            return False
        look, self._look = self._look, None
        return self._found(look) > end

    def _begin(self) -> None:
        self._looked_s = self._runtime.monotonic_s()
        self._look = self._aside.submit(self._end)
        self._look.add_done_callback(lambda _: self._inbox.wake())

    def admit(self, calls: list[Call], *, last: bool) -> list[Call]:
        """Return the calls that can be done now, those that were held before among them; with the ``last`` turn all."""
        freed, self._freed = self._freed, []
        if last or self._runtime.monotonic_s() - self._known_s < LOOK_S:
            held, self._held = self._held, []
            return [*freed, *held, *calls]
        for call in calls:
            if isinstance(call.operation, Look):
                self._held.append(replace(call, num_bytes=0))
                self._inbox.done(call.num_bytes)
        if self._held and self._look is None:
            self._begin()
        return [*freed, *(call for call in calls if not isinstance(call.operation, Look))]

    @property
    def holds(self) -> bool:
        """Whether questions are held."""
        return bool(self._held)

    def give_up(self, error: Exception) -> None:
        """Give those that are held an error."""
        held, self._held, self._freed = [*self._freed, *self._held], [], []
        for call in held:
            give(call.future, None, error)

    def _found(self, look: Future[int]) -> int:
        try:
            end = look.result()
        except LogReplacedError:
            raise
        except LogError as error:
            # What is wrong is reported to those who ask, and to those who want an append.
            self.give_up(error)
            return 0
        self.known(self._looked_s)
        # However long it took: of a slow store no look would be recent enough.
        self._freed, self._held = [*self._freed, *self._held], []
        return end

    def _end(self) -> int:
        return self._reader.manifest().next.position.offset
