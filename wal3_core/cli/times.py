"""Numbers, times and durations as people write them: ``1000``, ``2026-11-01``, ``-1h``, ``7d``."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import click

from wal3_core.runtime import US_PER_S, shared_runtime

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SHOWN_UNITS = ("d", "h", "m", "s")
# What is longer than the first is rounded to the second.
_ROUNDED_TO = ((86_400, 3600), (3600, 60))
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|min|m|h|d|w)", re.ASCII)
_WHOLE = re.compile(r"\d{1,20}", re.ASCII)
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,20})?", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)


def seconds_of(text: str) -> float | None:
    """Read a duration: a number of seconds, or parts with units such as ``1h30m``; None when it is neither."""
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def duration_of(seconds: int) -> str:
    """Write a duration as ``seconds_of`` reads it: ``90`` is ``1m30s``."""
    parts, left = "", seconds
    for name in _SHOWN_UNITS:
        number, left = divmod(left, int(_UNITS_S[name]))
        parts += f"{number}{name}" if number else ""
    return parts or "0s"


def with_durations(text: str) -> str:
    """Write the seconds in a sentence of the library as durations."""
    return re.sub(r"\b(\d{2,15}) s\b", lambda found: duration_of(int(found[1])), text)


def age_of(seconds: float) -> str:
    """Write how long something has lasted, rounded down to its second unit: ``0s``, ``23h59m``, ``6d23h``."""
    least = next((unit for above, unit in _ROUNDED_TO if seconds > above), 1)
    return duration_of(int(seconds) // least * least)


def wait_of(seconds: float) -> str:
    """Write how long to wait, rounded up to its second unit: ``1s``, ``23h59m``, ``6d23h``."""
    least = next((unit for above, unit in _ROUNDED_TO if seconds > above), 1)
    return duration_of(math.ceil(seconds / least) * least)


class Whole(click.IntRange):
    """A whole number; of a length that a number can have."""

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, str) and not _WHOLE.fullmatch(value.removeprefix("-")):
            self.fail(f"expected a whole number, found {value!r}", param, ctx)
        number: int = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it also takes text
        return number


class Decimal(click.FloatRange):
    """A number; not one of those that are none, or infinite."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        if isinstance(value, str) and not _DECIMAL.fullmatch(value.removeprefix("-")):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it also takes text
        return number


class Time(click.ParamType[int]):
    """A time: ISO 8601, UTC unless it has an offset; ``-`` and a duration before now; microseconds since the epoch."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return microseconds since the epoch."""
        if isinstance(value, int) or _WHOLE.fullmatch(value):
            return int(value)
        text = value.strip()
        if text == "now":
            return shared_runtime().now_us()
        if text.startswith("-"):
            ago_s = seconds_of(text[1:])
            # A number without a unit is more likely meant in microseconds.
            if ago_s is not None and not _NUMBER.fullmatch(text[1:]):
                return max(0, shared_runtime().now_us() - round(ago_s * US_PER_S))
        elif seconds_of(text) is not None:
            self.fail(f"expected a time, found a duration, {value!r}: -{text} is that long ago", param, ctx)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"expected ISO 8601 like 2026-11-01 or 2026-11-01T12:00:00+01:00, so long ago like -1h or -7d, or"
                f" microseconds since the epoch, found {value!r}",
                param,
                ctx,
            )
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found = round(moment.replace(microsecond=0).timestamp()) * US_PER_S + moment.microsecond
        if found < 0:
            self.fail(f"expected a time since 1970, found {value!r}", param, ctx)
        return found


class Duration(click.ParamType[float]):
    """A duration in seconds, or with units: ``90``, ``15m``, ``1h30m``, ``7d``, ``2w``; ``min_s`` to ``max_s``."""

    name = "duration"

    def __init__(self, min_s: float = 0, max_s: float | None = None) -> None:
        self._min_s = min_s
        self._max_s = max_s

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        seconds = seconds_of(value.strip()) if isinstance(value, str) else float(value)
        if seconds is None:
            self.fail(f"expected seconds, or a duration like 90s, 15m, 1h30m or 7d, found {value!r}", param, ctx)
        if not self._min_s <= seconds <= (seconds if self._max_s is None else self._max_s):
            most = "" if self._max_s is None else f", and at most {self._max_s:,.0f}"
            self.fail(f"expected at least {self._min_s:g} seconds{most}, found {value!r}", param, ctx)
        return seconds


class WholeSeconds(Duration):
    """A duration of whole seconds."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return seconds."""
        seconds = super().convert(value, param, ctx)
        if seconds != int(seconds):
            self.fail(f"expected whole seconds, found {value!r}", param, ctx)
        return int(seconds)
