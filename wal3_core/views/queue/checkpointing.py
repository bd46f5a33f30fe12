"""Writes checkpoints: the index is encoded beside the broker's work, and its parts are appended with its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogError
from wal3_core.model.cursor import Owner
from wal3_core.model.position import LogPosition
from wal3_core.runtime import Outcome
from wal3_core.runtime.loggers import QUEUE
from wal3_core.views.queue.answering import give
from wal3_core.views.queue.checkpoint import encode, table_of
from wal3_core.views.queue.encoding import part_key
from wal3_core.views.queue.loading import CURSOR, Tail

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.cursor_store import CursorStore
    from wal3_core.views.queue.loading import LoadedQueue
    from wal3_core.views.queue.queue_options import QueueOptions
    from wal3_core.views.queue.queue_state import QueueState, Turn

# A quarter as many records as there are items, or of the bytes of all values, make it worth another checkpoint.
_SHARE = 4
_ITEMS_A_FRAGMENT = 500


class Checkpointer:
    """The checkpoints of one broker. ``as_of`` and ``offsets`` are those of the newest that is complete."""

    def __init__(
        self, loaded: LoadedQueue, options: QueueOptions, executor: Executor, cursors: CursorStore, runtime: Runtime
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._executor = executor
        self._cursors = cursors
        # One would make what damaged fragments held be lost for good: an operator decides that.
        self.refuses = loaded.leaves_out
        self._known = set(loaded.parts)
        self.as_of, self.offsets = loaded.meta.as_of, loaded.meta.parts
        self._since = loaded.tail
        self._num_items, self._num_bytes = len(loaded.state), loaded.state.num_bytes
        # Who waits for the next one to begin, and for the one under way.
        self._wanted: list[Future[None]] = []
        self._awaited: list[Future[None]] = []
        self._encoding: Future[list[bytes]] | None = None
        self._begun_at = LogPosition(1, 0)
        self._appended: list[int] = []
        # All parts of the one under way are in the turn that is under way.
        self._finishing = False

    @property
    def busy(self) -> bool:
        """Whether there is one to begin or to finish."""
        return bool(self._wanted) or self._encoding is not None or self._is_due

    @property
    def _is_due(self) -> bool:
        if self.refuses:
            return False
        # Values that were released stay on storage until key compaction can go beyond them.
        options, since = self._options, self._since
        return (
            since.records >= max(options.checkpoint_records, self._num_items // _SHARE)
            or since.num_bytes >= max(options.checkpoint_bytes, self._num_bytes // _SHARE)
            # Each is a request of the next load, and a checkpoint takes as long as its items.
            or since.fragments >= max(options.checkpoint_fragments, self._num_items // _ITEMS_A_FRAGMENT)
        )

    def want(self) -> Future[None]:
        """Begin one with the next turn; the future is done when key compaction can go up to it.

        CorruptError while fragments are left out because they are damaged.
        """
        if self.refuses:
            raise self._refusal()
        future: Outcome[None] = Outcome()
        self._wanted.append(future)
        return future

    def _refusal(self) -> CorruptError:
        return CorruptError(
            "queue: expected none of its fragments to be damaged, found some: get them from a copy (`wal3 repair`), or"
            " let the queue go on without what they held (`wal3 queue repair --without-damaged`)"
        )

    def take_over(self, earlier: Checkpointer) -> None:
        """Let those who wait for another's checkpoint wait for this one's."""
        self._wanted += earlier._wanted + earlier._awaited
        if self.refuses:
            self.give_up(self._refusal())

    def begin(self, state: QueueState, position: LogPosition) -> None:
        """Begin one if it is time, at the beginning of a turn: all of the state is durable, below ``position``."""
        self._num_items, self._num_bytes = len(state), state.num_bytes
        if self.refuses or self._encoding is not None or not (self._wanted or self._is_due):
            return
        self._begun_at, self._appended = position, []
        self._since = Tail()
        self._awaited, self._wanted = self._wanted, []
        self._encoding = self._executor.submit(encode, table_of(state))

    def add_to(self, turn: Turn, *, wait: bool = False) -> None:
        """Add the next part to a turn, once they are encoded; with the last one in the log the checkpoint counts."""
        if self._encoding is None or not (wait or self._encoding.done()):
            return
        parts, number = self._runtime.wait(self._encoding), len(self._appended)
        self._appended.append(turn.add(part_key(self._begun_at.offset, number), parts[number]))
        if len(self._appended) == len(parts):
            new = {part_key(self._begun_at.offset, number) for number in range(len(parts))}
            for old in sorted(self._known - new):
                turn.add(old, None)
            self._known = new
            self.as_of, self.offsets = self._begun_at.offset, tuple(self._appended)
            self._finishing = True

    def committed(self, num_changes: int, num_bytes: int, end: LogPosition) -> None:
        """Take note of a turn that is durable; what it has of a checkpoint makes no other one due."""
        self._since = self._since.with_more(num_changes, num_bytes, 1)
        if self._finishing:
            self._finishing, self._encoding = False, None
            awaited, self._awaited = self._awaited, []
            self._executor.submit(self._move_cursor, self._begun_at, end, awaited)

    def _move_cursor(self, begun_at: LogPosition, end: LogPosition, awaited: list[Future[None]]) -> None:
        """Let key compaction go up to the checkpoint.

        Where there is no cursor, nothing was kept from compaction: only a checkpoint behind the new cursor counts.
        """
        try:
            witness = self._cursors.load(CURSOR, Owner.QUEUE)
            if witness is None:
                self._cursors.init(CURSOR, end, owner=Owner.QUEUE)
                self._wanted.append(Outcome())
            elif witness.cursor.position.offset < begun_at.offset:
                self._cursors.save(CURSOR, begun_at, witness, owner=Owner.QUEUE)
        except LogError as error:
            # The next checkpoint moves it; until then more is kept than needed.
            QUEUE.warning("queue: the cursor %s was not moved to %d: %s", CURSOR, begun_at.offset, error)
            for future in awaited:
                future.set_exception(error)
        else:
            for future in awaited:
                future.set_result(None)

    def fail(self, error: Exception, *, last: bool) -> None:
        """Give those who wait an error; one that was wanted is written later all the same, unless this was the last."""
        if self._wanted or self._awaited:
            self.give_up(error)
            self._wanted = [] if last else [Outcome()]

    def give_up(self, error: Exception) -> None:
        """Give those who wait an error."""
        waiting, self._wanted, self._awaited = [*self._wanted, *self._awaited], [], []
        for future in waiting:
            give(future, None, error)
