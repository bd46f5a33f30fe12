"""The options of ``spark.readStream.format("wal3")``, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.model.paths import check_cursor_name
from wal3_core.spark.request import ReadRequest, flag_option, number_option

if TYPE_CHECKING:
    from collections.abc import Mapping

BEGINNING, END = "beginning", "end"
_OF_STREAMS = frozenset({"start", "maxrecordspertrigger", "failondataloss", "cursor"})
# A stream's own place says where it reads.
_OF_BATCHES = ("from_offset", "to_offset", "from_timestamp_us", "to_timestamp_us", "push_filters")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a stream reads and how.

    ``records_max`` bounds a batch, None does not. ``cursor`` names the cursor that follows the stream in each log.
    Without ``fail_on_loss``, the stream goes on behind records, and without logs, that are gone.
    """

    reading: ReadRequest
    start: str
    records_max: int | None
    fail_on_loss: bool
    cursor: str | None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> StreamRequest:
        """Read the options; InvalidRequestError says which one is wrong."""
        of_read, found = split_options(options)
        unfit = [name for name in of_read if name.lower() in _OF_BATCHES]
        if unfit:
            message = f"options of a stream: expected none of {', '.join(_OF_BATCHES)}, found {sorted(unfit)}"
            raise InvalidRequestError(message)
        start = found.get("start", BEGINNING)
        if start not in {BEGINNING, END}:
            raise InvalidRequestError(f"option start: expected {BEGINNING} or {END}, found {start[:40]!r}")
        return cls(
            reading=ReadRequest.from_options(of_read),
            start=start,
            records_max=number_option(found, "maxRecordsPerTrigger", low=1),
            fail_on_loss=flag_option(found, "failOnDataLoss", default=True),
            cursor=None if "cursor" not in found else check_cursor_name(found["cursor"]),
        )


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options that reads in batches have, too, and those of streams alone, the latter in lower case."""
    of_read = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}
    return of_read, {name.lower(): value for name, value in options.items() if name.lower() in _OF_STREAMS}
