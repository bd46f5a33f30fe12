"""Reads the values of items by the offsets of their records, and keeps the ones read or written last in memory."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.errors import CorruptError, GarbageCollectedError, MissingError
from wal3_core.options import Limits
from wal3_core.views.queue.encoding import value_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.log.read.reader import LogReader
    from wal3_core.model.manifest import Manifest
    from wal3_core.runtime import Runtime
    from wal3_core.views.queue.runs import Row

_TRIES_MAX = 8
# What Python adds to the bytes of a body.
_BODY_BYTES = 50


class _Part:
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


class Values:
    """The values of one queue. Safe to share between threads."""

    def __init__(self, reader: LogReader, bytes_max: int, runtime: Runtime, url: str) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._url = url
        self._lock = runtime.lock()
        self._parts: OrderedDict[int, _Part] = OrderedDict()
        self._starts: list[int] = []
        self._num_bytes = 0
        self._manifest: Manifest | None = None

    def keep(self, start: int, bodies: Sequence[bytes | None]) -> None:
        """Remember records that were just appended."""
        self._keep(_Part(start, start + len(bodies), range(start, start + len(bodies)), bodies))

    def _keep(self, part: _Part) -> None:
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

    def _known(self, offset: int) -> _Part | None:
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

    def _parts_of(self, offsets: Iterable[int]) -> Iterator[_Part]:
        """Yield the part that has each of some rising offsets; one that is too large to be kept is read once."""
        part: _Part | None = None
        for offset in offsets:
            if part is None or not part.start <= offset < part.limit:
                part = self._known(offset) or self._load(offset)
            yield part

    def _load(self, offset: int) -> _Part:
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
            part = _Part(pointer.start.offset, pointer.limit.offset, offsets, fragment.table["body"].to_pylist())
            self._keep(part)
            return part
        message = f"queue {self._url}: expected a record at offset {offset}, found none"
        raise CorruptError(message)
