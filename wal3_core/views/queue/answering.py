"""Answers: given when the turn is durable, and, of items that were handed out, when their values were read."""

from __future__ import annotations

import bisect
import contextlib
from collections import OrderedDict
from concurrent.futures import Future, InvalidStateError
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wal3_core.errors import CorruptError, GarbageCollectedError, LogError, MissingError
from wal3_core.options import Limits
from wal3_core.runtime.loggers import QUEUE
from wal3_core.views.queue.encoding import value_header
from wal3_core.views.queue.operations import GiveBack, Leased, Peeked
from wal3_core.views.queue.queue_state import US_PER_MS, time_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from wal3_core.format.manifest import Manifest
    from wal3_core.log.read.reader import LogReader
    from wal3_core.runtime import Runtime
    from wal3_core.views.queue.queue_state import Lease, QueueState
    from wal3_core.views.queue.runs import Row

_TRIES_MAX = 8
# Python's memory for a body, besides its bytes.
_BODY_BYTES = 50


class _CachedRecords:
    """The bodies of adjacent records, by their rising offsets; all that the log has from ``start`` to ``limit``."""

    __slots__ = ("bodies", "limit", "num_bytes", "offsets", "start")

    def __init__(self, start: int, limit: int, offsets: Sequence[int], bodies: Sequence[bytes | None]) -> None:
        self.start, self.limit = start, limit
        self.offsets, self.bodies = offsets, bodies
        self.num_bytes = sum(len(body or b"") + _BODY_BYTES for body in bodies)

    def body(self, offset: int) -> bytes | None:
        index = bisect.bisect_left(self.offsets, offset)
        found = index < len(self.offsets) and self.offsets[index] == offset
        return self.bodies[index] if found else None


class ValueCache:
    """The values of one queue. Safe to share between threads."""

    def __init__(self, reader: LogReader, bytes_max: int, runtime: Runtime, url: str) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._url = url
        self._lock = runtime.lock()
        self._parts: OrderedDict[int, _CachedRecords] = OrderedDict()
        self._starts: list[int] = []
        self._num_bytes = 0
        self._manifest: Manifest | None = None

    def keep(self, start: int, bodies: Sequence[bytes | None]) -> None:
        """Remember records that were just appended."""
        self._keep(_CachedRecords(start, start + len(bodies), range(start, start + len(bodies)), bodies))

    def _keep(self, part: _CachedRecords) -> None:
        if part.num_bytes > self._bytes_max:
            return
        with self._lock:
            # Those that lie in it, as it was merged from several fragments, would hide it.
            begin, end = (bisect.bisect_left(self._starts, edge) for edge in (part.start, part.limit))
            for start in self._starts[begin:end]:
                self._num_bytes -= self._parts.pop(start).num_bytes
            self._starts[begin:end] = [part.start]
            self._parts[part.start] = part
            self._num_bytes += part.num_bytes
            while self._num_bytes > self._bytes_max:
                start, oldest = self._parts.popitem(last=False)
                del self._starts[bisect.bisect_left(self._starts, start)]
                self._num_bytes -= oldest.num_bytes

    def _known(self, offset: int) -> _CachedRecords | None:
        with self._lock:
            index = bisect.bisect_right(self._starts, offset) - 1
            part = self._parts[self._starts[index]] if index >= 0 else None
            if part is None or offset >= part.limit:
                return None
            self._parts.move_to_end(part.start)
            return part

    def has_all(self, rows: Iterable[Row]) -> bool:
        """Tell whether the values of items are in memory."""
        return all(self._known(row.offset) is not None for row in rows)

    def read_ahead(self, rows: Iterable[Row]) -> None:
        """Load the values of items that are not in memory, in their order, as many as may stay there."""
        left, wanted = self._bytes_max, []
        for row in rows:
            left -= row.length + _BODY_BYTES
            if left < 0:
                break
            wanted.append(row.offset)
        for _ in self._parts_of(sorted(wanted)):
            pass

    def read(self, rows: Sequence[Row], created_ms: int) -> list[bytes]:
        """Return the values of items, in their order; CorruptError when a record is not theirs."""
        found: dict[int, bytes] = {}
        in_order = sorted(rows, key=lambda row: row.offset)
        for row, part in zip(in_order, self._parts_of(row.offset for row in in_order), strict=True):
            what = f"queue {self._url}: item {row.id}"
            body = part.body(row.offset)
            if body is None:
                message = f"{what}: expected its value at offset {row.offset}, found none"
                raise CorruptError(message)
            value = body[value_header(body, created_ms, what).length :]
            if len(value) != row.length:
                message = f"{what}: expected a value of {row.length} bytes, found {len(value)}"
                raise CorruptError(message)
            found[row.id] = value
        return [found[row.id] for row in rows]

    def _parts_of(self, offsets: Iterable[int]) -> Iterator[_CachedRecords]:
        """Yield the part that has each of some rising offsets; one that is too large to be kept is read once."""
        part: _CachedRecords | None = None
        for offset in offsets:
            if part is None or not part.start <= offset < part.limit:
                part = self._known(offset) or self._load(offset)
            yield part

    def _load(self, offset: int) -> _CachedRecords:
        """Read the fragment that has a record; it may have been replaced, by key compaction, or moved since."""
        for tried in range(_TRIES_MAX):
            manifest = self._manifest
            if manifest is None or manifest.next.position.offset <= offset or tried:
                manifest = self._manifest = self._reader.manifest()
            try:
                pointer = next(iter(self._reader.pointers(offset, Limits(offset=offset + 1), manifest=manifest)), None)
                if pointer is None:
                    continue
                fragment = self._reader.fetch(pointer)
            except (GarbageCollectedError, MissingError):
                if tried + 1 == _TRIES_MAX:
                    raise
                continue
            offsets = fragment.table["offset"].to_numpy().astype(np.int64).tolist()
            bodies = fragment.table["body"].to_pylist()
            part = _CachedRecords(pointer.start.offset, pointer.limit.offset, offsets, bodies)
            self._keep(part)
            return part
        message = f"queue {self._url}: expected a record at offset {offset}, found none"
        raise CorruptError(message)


class WithValues(NamedTuple):
    """A result that needs the values of some items: ``make`` makes each of an item's place and value."""

    rows: Sequence[Row]
    make: Callable[[int, bytes], Any]
    leases: Sequence[Lease] = ()


class Answers:
    """The answers of one turn. ``give_back`` gets the leases of a caller who has given up meanwhile."""

    def __init__(self, values: ValueCache, readers: Executor, give_back: Callable[[GiveBack], object]) -> None:
        self._values = values
        self._readers = readers
        self._give_back = give_back
        self._results: list[tuple[Future[Any], Any]] = []

    def add(self, future: Future[Any], result: Any) -> None:  # noqa: ANN401 - each has its own result
        """Add the result of an operation, or the LogError that refused it: then it changed nothing."""
        self._results.append((future, result))

    def add_leases(self, future: Future[Any], state: QueueState, leases: list[Lease]) -> None:
        """Add items that were handed out."""
        keys = [state.dedupe_keys.get(lease.row.id) for lease in leases]

        def make(index: int, value: bytes) -> Leased:
            row, priority, until_ms, token, _ = leases[index]
            return Leased(
                **_shown(row, priority, value),
                token=token.hex(),
                lease_until_us=until_ms * US_PER_MS,
                dedupe_key=keys[index],
            )

        self.add(future, WithValues([lease.row for lease in leases], make, leases))

    def complete(self, created_ms: int) -> None:
        """Give the answers: values that are not in memory are read by others meanwhile."""
        for future, result in self._results:
            if isinstance(result, LogError):
                complete(future, None, result)
            elif not isinstance(result, WithValues):
                complete(future, result, None)
            elif not self._values.has_all(result.rows):
                self._readers.submit(self._read, future, result, created_ms)
            else:
                self._read(future, result, created_ms)

    def _read(self, future: Future[Any], result: WithValues, created_ms: int) -> None:
        try:
            made = [result.make(index, value) for index, value in self._readable(result.rows, created_ms)]
        except Exception as error:  # noqa: BLE001 - the caller gets it; the lease ends, and the item comes back
            complete(future, None, error)
            return
        if not complete(future, made, None) and result.leases:
            self._give_back(GiveBack(tuple((lease.row.id, lease.token.hex()) for lease in result.leases)))

    def _readable(self, rows: Sequence[Row], created_ms: int) -> list[tuple[int, bytes]]:
        """Read the values of items; those that cannot be read are left out, so that one holds up no others."""
        found: list[tuple[int, bytes]] = []
        try:
            found += enumerate(self._values.read(rows, created_ms))
        except (CorruptError, GarbageCollectedError):
            for index, row in enumerate(rows):
                try:
                    found.append((index, self._values.read([row], created_ms)[0]))
                except LogError as missing:
                    QUEUE.warning("item %d is left out of what it was asked with: %s", row.id, missing)
            if not found:
                raise
        return found

    def fail(self, futures: Sequence[Future[Any]], error: Exception) -> None:
        """Give an error instead of all answers: those of the turn, and those of calls that were not looked at."""
        for future in dict.fromkeys([*futures, *(future for future, _ in self._results)]):
            complete(future, None, error)


def complete(future: Future[Any], result: Any, error: Exception | None) -> bool:  # noqa: ANN401 - each has its own result
    """Set a future that may have been cancelled: then return False."""
    if not future.running() and not future.set_running_or_notify_cancel():
        return False
    # The caller's callbacks run here; what they raise is logged by the future.
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    return True


def _shown(row: Row, priority: int, value: bytes) -> dict[str, Any]:
    return {
        "id": row.id,
        "value": value,
        "deadline_us": row.deadline_ms * US_PER_MS,
        "priority": priority,
        "deliveries": row.deliveries,
        "enqueued_us": row.enqueued_ms * US_PER_MS,
        "requeued_us": time_us(row.requeued_ms),
    }


def fitting(rows: Sequence[tuple[Row, int]], bytes_max: int | None) -> Sequence[tuple[Row, int]]:
    """Return the first items whose values have at most ``bytes_max`` bytes together; at least one."""
    if bytes_max is None:
        return rows
    ends = accumulate(row.length for row, _ in rows)
    return rows[: max(1, sum(end <= bytes_max for end in ends))]


def peeked(rows: Sequence[tuple[Row, int]]) -> WithValues:
    """Return items as they wait, once their values are read."""
    return WithValues([row for row, _ in rows], lambda index, value: Peeked(**_shown(*rows[index], value)))
