"""Names on the command line: each kind is a type, which checks a name and completes it.

A name that cannot be one is refused before anything is done, with what may be meant. The store of a completion is that
of WAL3_STORE, or of the --store on the line; whatever fails completes nothing, and prints nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import click
from click.shell_completion import CompletionItem

from wal3_core.cli.failures import NAMED_LOG, InvalidFailure
from wal3_core.cli.session import open_named, whole_url
from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.model.paths import DIRTY, check_cursor_name, check_log_name, check_pin_name, is_name_part
from wal3_core.runtime import later, shared_runtime
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.pin_store import PinStore
from wal3_core.storage.store_urls import options_of_url, split_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal3_core.storage.object_store import ObjectStore

    F = TypeVar("F", bound=Callable[..., object])
    T = TypeVar("T")

    Names = Callable[[ObjectStore, str, str], Iterable[str]]

_TIMEOUT_S = 1.0
_NAMES_MAX = 500
# Each candidate takes a listing, which shows whether there are logs below it.
_OPENED_MAX = 16
# Of the address of a bucket: ``s3://bucket``.
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
        """Return the name."""
        try:
            return self._check(_SECRETS.sub("…", value), self.name)
        except InvalidRequestError as error:
            option = f"{param.opts[0]}: " if isinstance(param, click.Option) else ""
            raise InvalidFailure(f"{option}{error}{_meant(value, self.name, ctx)}") from error

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete it."""
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
            store, log = open_named(_hurried(url)), log if isinstance(log, str) else ""
            asked = later(shared_runtime(), lambda: list(islice(names(store, log, begun), _NAMES_MAX)))
            return [name for name in shared_runtime().wait(asked, _TIMEOUT_S) if name.startswith(begun)]
    return []


def _hurried(url: str) -> str:
    """Return the URL of the same store, whose requests are given up soon."""
    if not url.startswith(("s3:", "gs:", "az:")):
        return url
    options = {**options_of_url(url), "timeout_s": "0", "request_timeout_s": f"{_TIMEOUT_S:g}"}
    return split_store_url(url)._replace(query=urlencode(options, safe=":/")).geturl()


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


def _cursors(store: ObjectStore, log: str, _: str) -> Iterable[str]:
    return sorted(CursorStore(store, log).list())


def _pins(store: ObjectStore, log: str, _: str) -> Iterable[str]:
    return sorted(PinStore(store, log).list())


LOG = Name("log", check_log_name, _logs)
LOG_PREFIX = Name("prefix", _check_prefix, _logs)
CURSOR = Name("cursor", check_cursor_name, _cursors)
PIN = Name("pin", check_pin_name, _pins)
SERVER = Name("server", _check_server)
