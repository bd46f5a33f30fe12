"""Options that select a range of a log: from inclusive, to exclusive."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import click

from wal3_core.cli.times import Time, Whole
from wal3_core.model.position import AtTime
from wal3_core.options import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.position import ReadStart

    F = TypeVar("F", bound=Callable[..., object])

_OPTIONS = (
    click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin with the record at offset N."),
    click.option("--from-time", metavar="T", type=Time(), help="Begin with the first record at or after T."),
    click.option("--to-offset", metavar="N", type=Whole(min=1), help="End before the record at offset N."),
    click.option("--to-time", metavar="T", type=Time(), help="End before the first record at or after T."),
)


class Place(click.ParamType[str]):
    """A place in a log: an offset, ``first`` or ``next``."""

    name = "offset"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it; it is looked up in the log."""
        if value in {"first", "next"}:
            return value
        if not value.isdecimal():
            self.fail(f"expected an offset, first or next, found {value!r}", param, ctx)
        return str(Whole(min=1).convert(value, param, ctx))


def range_options(command: F) -> F:
    """Add --from-offset, --from-time, --to-offset and --to-time."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def start_of(chosen: dict[str, int | None]) -> ReadStart:
    """Return where the range begins; None for the log's beginning. UsageError when there are two beginnings."""
    if chosen["from_offset"] is not None and chosen["from_time"] is not None:
        message = "--from-offset and --from-time: give only one of them"
        raise click.UsageError(message)
    return AtTime(chosen["from_time"]) if chosen["from_time"] is not None else chosen["from_offset"]


def limits_of(chosen: dict[str, int | None], records: int | None = None) -> Limits:
    """Return where the range ends, at the latest after so many records."""
    return Limits(offset=chosen["to_offset"], timestamp_us=chosen["to_time"], records=records)
