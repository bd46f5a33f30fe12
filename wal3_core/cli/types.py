"""Types of arguments: names, numbers, times and durations, ranges of a log; each is checked before anything is done."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import CompletionItem

from wal3_core.cli.shell.failures import NAMED_LOG, InvalidFailure
from wal3_core.cli.shell.session import whole_url, with_options
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.format.paths import DIRTY, check_cursor_name, check_log_name, check_pin_name, is_name_part
from wal3_core.format.position import AtTime, ReadStart
from wal3_core.runtime import US_PER_S, later, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from wal3_core.cli.shell.session import F

T = TypeVar("T")
Names = Callable[[ObjectStore, str, str], Iterable[str]]

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SHOWN_UNITS = ("d", "h", "m", "s")
# Units, in seconds, to which durations longer than the first number are rounded.
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
        if isinstance(value, str) and not _WHOLE.fullmatch(value.removeprefix("-")):
            self.fail(f"expected a whole number, found {value!r}", param, ctx)
        number: int = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it also takes text
        return number


class Decimal(click.FloatRange):
    """A number; not one of those that are none, or infinite."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and not _DECIMAL.fullmatch(value.removeprefix("-")):
            self.fail(f"expected a number, found {value!r}", param, ctx)
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # it also takes text
        return number


class Time(click.ParamType[int]):
    """A time: ISO 8601, UTC unless it has an offset; ``-`` and a duration before now; microseconds since the epoch."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
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
        seconds = super().convert(value, param, ctx)
        if seconds != int(seconds):
            self.fail(f"expected whole seconds, found {value!r}", param, ctx)
        return int(seconds)


_TIMEOUT_S = 1.0
_NAMES_MAX = 500
# Folders that a completion lists, to see whether there are logs below them.
_OPENED_MAX = 16
# Slashes in the address of a bucket, ``s3://bucket``.
_SLASHES_OF_A_BUCKET = 2
_MEANT_LENGTH_MAX = 100
# The names and passwords in a URL, and its options.
_SECRETS = re.compile(r"(?<=://)[^/@]*@|\?.*", re.DOTALL)
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)


class Name(click.ParamType[str]):
    """A name of one kind; InvalidFailure says what was expected, what was found, and what may be meant."""

    def __init__(self, name: str, check: Callable[[object, str], str], names: Names | None = None) -> None:
        self.name = name
        self._check = check
        self._names = names

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return self._check(_SECRETS.sub("…", value), self.name)
        except InvalidRequestError as error:
            option = f"{param.opts[0]}: " if isinstance(param, click.Option) else ""
            raise InvalidFailure(f"{option}{error}{_meant(value, self.name, ctx)}") from error

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        found = [] if self._names is None else completed(ctx, incomplete, self._names)
        return list(map(CompletionItem, found))


def _check_prefix(value: object, what: str) -> str:
    """Take the beginning of logs' names, or nothing; slashes after it do not count."""
    prefix = str(value).rstrip("/")
    return prefix and check_log_name(prefix, what)


def _check_server(value: object, what: str) -> str:
    """Take the name of a server, or that of its dirty log; none is every server."""
    server = str(value)
    return server and check_log_name(server.removeprefix(f"{DIRTY}/"), what)


def log_argument(name: str = "log", *, many: bool = False) -> Callable[[F], F]:
    """Make an argument that takes the name of a log, or of several."""
    if many:
        return click.argument(name, metavar="LOG...", nargs=-1, type=LOG, callback=_note_log)
    return click.argument(name, type=LOG, callback=_note_log)


def _note_log(context: click.Context, parameter: click.Parameter, log: T) -> T:
    """Let a failure of the command name its log; not one of several."""
    del parameter
    names = log if isinstance(log, tuple) else (log,)
    if len(names) == 1:
        context.meta[NAMED_LOG] = names[0]
    return log


# ---------------------------------------------------------------------- what may be meant


def _meant(value: str, kind: str, context: click.Context | None) -> str:
    """Say what may be meant by a name that cannot be one: a store, one of its logs, or a name much like it."""
    if context is None or len(value) > _MEANT_LENGTH_MAX:
        return ""
    command = context.command_path.partition(" ")[2] if kind in {LOG.name, LOG_PREFIX.name} else ""
    address = value.partition("?")[0].rstrip("/")
    is_folder = address.startswith("/") and os.path.isdir(address)  # noqa: PTH112 - False for what is no path
    if command and (":" in address or is_folder):
        named = context.find_root().params.get("store")
        within = _within(address, named)
        # A path below a bucket is more likely that of a log.
        parted = kind == LOG.name and not is_folder and address.count("/") > _SLASHES_OF_A_BUCKET
        store, _, log = address.rpartition("/") if parted else (address, "", "")
        shown = shlex.quote(store) if _SECRETS.search(value) is None else "URL"
        called = f"wal3 {command}" if within is not None else f"wal3 --store {shown} {command}"
        log = log if within is None else within
        more = " …" if sum(isinstance(each, click.Argument) for each in context.command.params) > 1 else ""
        return f": did you mean `{called}{f' {log}' if log else '' if kind == LOG_PREFIX.name else ' LOG'}{more}`?"
    parts = (_FOREIGN.sub("-", part).strip("-") for part in re.split(r"[/\\]+", value) if part.strip("."))
    like = ("/" if command else "-").join(filter(None, parts))
    if like and like != value and len(like) <= _MEANT_LENGTH_MAX and all(map(is_name_part, like.split("/"))):
        return f": did you mean {like}?"
    return ": `wal3 ls` lists the logs" if command else ""


def _within(address: str, named: object) -> str | None:
    """Return what an address names within the store that is named, "" for all of it; None for another store's."""
    if isinstance(named, str):
        with suppress(LogError, OSError, ValueError):
            store, place = (whole_url(each).partition("?")[0].rstrip("/") for each in (named, address))
            if f"{place}/".startswith(f"{store}/"):
                return place.removeprefix(store).strip("/")
    return None


# ---------------------------------------------------------------------- completion


def complete_names_below(context: click.Context, folder: str, begun: str) -> list[str]:
    """Complete the names of the logs below another name, without that."""
    found = completed(context, f"{folder}/{begun}", _logs)
    return [log.removeprefix(f"{folder}/") for log in found]


def completed(context: click.Context, begun: str, names: Names) -> list[str]:
    """Return the names that begin so, of the store and the log on the line."""
    # A message, or a traceback, would be printed into the line being typed.
    with suppress(Exception):
        options = context.find_root().params
        url = options.get("store")
        if isinstance(url, str):
            # Where an option waits for its value, click has not parsed the arguments yet.
            log = context.params.get("log") or next(iter(context.args), None)
            # Requests are given up soon.
            hurried = with_options(whole_url(url), timeout_s="0", request_timeout_s=f"{_TIMEOUT_S:g}")
            store, log = open_store(hurried), log if isinstance(log, str) else ""
            asked = later(shared_runtime(), lambda: list(islice(names(store, log, begun), _NAMES_MAX)))
            return [name for name in shared_runtime().wait(asked, _TIMEOUT_S) if name.startswith(begun)]
    return []


def _logs(store: ObjectStore, _: str, begun: str) -> Iterable[str]:
    """List the names that begin so, at the level being typed and below it; after some listings, folders as they are."""
    above = begun.rpartition("/")[0]
    folder = f"{above}/" if above else ""
    waiting = [each for each in store.list_folders(folder) if each.startswith(begun) and _is_named(each)]
    opened = 0
    while waiting:
        folder = waiting.pop(0)
        opened += 1
        inside = store.list_folders(folder) if opened <= _OPENED_MAX else []
        below = list(filter(_is_named, inside))
        if len(below) == len(inside) and inside:
            # Nothing of a log's own: only other logs are below it.
            waiting += below
            continue
        yield folder.removesuffix("/")
        waiting += below


def _is_named(folder: str) -> bool:
    return is_name_part(folder.rstrip("/").rpartition("/")[2])


LOG = Name("log", check_log_name, _logs)
LOG_PREFIX = Name("prefix", _check_prefix, _logs)
CURSOR = Name("cursor", check_cursor_name, lambda store, log, _: sorted(CursorStore(store, log).list()))
PIN = Name("pin", check_pin_name, lambda store, log, _: sorted(PinStore(store, log).list()))
SERVER = Name("server", _check_server)


_OPTIONS = (
    click.option("--from-offset", metavar="N", type=Whole(min=1), help="Begin with the record at offset N."),
    click.option("--from-time", metavar="T", type=Time(), help="Begin with the first record at or after T."),
    click.option("--to-offset", metavar="N", type=Whole(min=1), help="End before the record at offset N."),
    click.option("--to-time", metavar="T", type=Time(), help="End before the first record at or after T."),
)


class LogOffset(click.ParamType[str]):
    """A place in a log: an offset, ``first`` or ``next``."""

    name = "offset"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
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


def check_alone(first: str, second: str, *values: object) -> None:
    """Raise UsageError when both of two options are given."""
    if None not in values:
        raise click.UsageError(f"{first} and {second}: give only one of them")


def start_of(from_offset: int | None, from_time: int | None) -> ReadStart:
    """Return where the range begins; None for the log's beginning. UsageError when there are two beginnings."""
    check_alone("--from-offset", "--from-time", from_offset, from_time)
    return AtTime(from_time) if from_time is not None else from_offset
