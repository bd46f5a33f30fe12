"""Items and leases as lines on standard input."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from wal3_core.cli.failures import Failure, InvalidFailure
from wal3_core.cli.lines import line_batches, standard_input
from wal3_core.cli.output import counted
from wal3_core.cli.stopping import StopSignals
from wal3_core.errors import InvalidRequestError, LogError, UnknownDurabilityError
from wal3_core.queue_server.wire import new_item
from wal3_core.views.queue import NewItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wal3_core.cli.queues import Queues
    from wal3_core.queue_server.wire import Json

_BATCH_LINES_MAX = 1000
# Well within what a server takes.
_BATCH_BYTES_MAX = 4 * 2**20
_TIMES = ("delay_s", "deadline_us")


class Enqueuing:
    """Adds items to a queue, and counts those that are in it. ``given`` are the fields that a line may leave out."""

    def __init__(self, queues: Queues, name: str, given: Mapping[str, Any]) -> None:
        self._queues = queues
        self._name = name
        self._given = given
        self._lines = 0
        self._num_items = 0
        self._num_duplicates = 0
        self._first_id: object = None
        self._last_id: object = None

    @property
    def summary(self) -> str:
        """Describe what is in the queue."""
        added = self._num_items - self._num_duplicates
        ids = ""
        if added:
            ids = f" (id {self._first_id})" if added == 1 else f" (ids {self._first_id} to {self._last_id})"
        there = f"; {counted(self._num_duplicates, 'duplicate')} of items there" if self._num_duplicates else ""
        return f"{counted(added, 'item')} enqueued to {self._name}{ids}{there}"

    def to_json(self) -> Json:
        """Describe it for programs: the first ``lines`` lines of the input are in the queue."""
        return {
            "items": self._num_items - self._num_duplicates,
            "duplicates": self._num_duplicates,
            "lines": self._lines,
            "first_id": self._first_id,
            "last_id": self._last_id,
        }

    def add_one(self, text: str, dedupe_key: object) -> None:
        """Add one item."""
        self._add([new_item({**self._given, "text": text, "dedupe_key": dedupe_key})])

    def run(self, *, raw: bool) -> Failure | None:
        """Add an item for each line of standard input; return the failure that ended it early, or None."""
        stream = standard_input()
        if stream is None:
            return InvalidFailure("standard input: expected items, found it closed")
        with StopSignals() as signals:
            try:
                for lines in line_batches(stream):
                    self._add_lines(lines, raw=raw)
                    if signals.stop:
                        return type(signals.failure)(f"{self.summary}; {signals.failure.message}{self._so_far}")
            except LogError as error:
                kind = InvalidFailure if isinstance(error, InvalidRequestError) else Failure
                next_line = f"line {self._lines + 1}"
                said = f"{next_line} is not, nor is any line after it: {error}"
                if isinstance(error, UnknownDurabilityError):
                    said = f"{next_line} and those sent with it may or may not be, no line after them is: {error}"
                return kind(f"{self.summary}{self._so_far}; {said}")
            except OSError as error:
                return Failure(f"{self.summary}{self._so_far}; standard input: {error}")
        return None

    @property
    def _so_far(self) -> str:
        return f"; lines 1 to {self._lines} are in the queue" if self._lines else ""

    def _add_lines(self, lines: list[bytes], *, raw: bool) -> None:
        """Add the items of lines; those before a bad line, too."""
        items: list[NewItem] = []
        num_bytes = taken = 0
        bad: InvalidRequestError | None = None
        for line in lines:
            try:
                item = self._item(line, raw=raw)
            except InvalidRequestError as error:
                bad = error
                break
            taken += 1
            if item is None:
                continue
            items.append(item)
            num_bytes += len(item.value)
            if len(items) == _BATCH_LINES_MAX or num_bytes > _BATCH_BYTES_MAX:
                self._add(items)
                self._lines += taken
                items, num_bytes, taken = [], 0, 0
        if items:
            self._add(items)
        self._lines += taken
        if bad is not None:
            raise bad

    def _item(self, line: bytes, *, raw: bool) -> NewItem | None:
        if raw:
            return NewItem(line, **self._given)
        if not line.strip():
            return None
        fields = _object(line)
        given = dict(self._given)
        if any(fields.get(name) is not None for name in _TIMES):
            for name in _TIMES:
                given.pop(name, None)
        return new_item({**given, **fields})

    def _add(self, items: list[NewItem]) -> None:
        for done in self._queues.enqueue_many(self._name, items):
            self._num_items += 1
            if done["duplicate"]:
                self._num_duplicates += 1
            else:
                self._first_id = done["id"] if self._first_id is None else self._first_id
                self._last_id = done["id"]


def leases_of(lines: Iterable[str] | None) -> list[tuple[int, str]]:
    """Return the ids and tokens of lines of JSON. InvalidRequestError names a line that is none."""
    if lines is None:
        message = "standard input: expected items, found it closed"
        raise InvalidRequestError(message)
    found: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = _object(line.encode(errors="surrogateescape"))
        item_id, token = fields.get("id"), fields.get("token")
        if not isinstance(item_id, int) or isinstance(item_id, bool) or not isinstance(token, str):
            message = f"line {number}: expected an object with id and token, found {ascii(line.strip())[:40]}"
            raise InvalidRequestError(message)
        found.append((item_id, token))
    return found


def _object(line: bytes) -> dict[str, object]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        message = f"expected a JSON object, found {ascii(line)[:40]}: {error} (--raw takes each line as it is)"
        raise InvalidRequestError(message) from error
    if not isinstance(fields, dict):
        message = f"expected a JSON object, found {ascii(line)[:40]} (--raw takes each line as it is)"
        raise InvalidRequestError(message)
    return fields
