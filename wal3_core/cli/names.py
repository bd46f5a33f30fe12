"""Completion of the names of logs, cursors and pins; whatever fails completes nothing, and prints nothing.

The store is that of WAL3_STORE, or of the --store on the line.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import click

from wal3_core.cli.failures import NAMED_LOG
from wal3_core.cli.session import open_named
from wal3_core.model.paths import is_name_part
from wal3_core.runtime import later, shared_runtime
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.pin_store import PinStore
from wal3_core.storage.store_urls import options_of_url, split_store_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from wal3_core.storage.object_store import ObjectStore

    F = TypeVar("F", bound=Callable[..., object])

    Names = Callable[[ObjectStore, str, str], Iterable[str]]

_TIMEOUT_S = 1.0
_NAMES_MAX = 500
# Each candidate takes a listing, which shows whether there are logs below it.
_OPENED_MAX = 16


def log_argument(name: str = "log", *, many: bool = False) -> Callable[[F], F]:
    """Make an argument that completes the names of logs."""
    if many:
        return click.argument(name, metavar="LOG...", nargs=-1, shell_complete=complete_logs)
    return click.argument(name, shell_complete=complete_logs, callback=_note_log)


def _note_log(context: click.Context, parameter: click.Parameter, log: str) -> str:
    """Let a failure of the command name its log."""
    del parameter
    context.meta[NAMED_LOG] = log
    return log


def cursor_argument() -> Callable[[F], F]:
    """Make an argument that completes the names of the cursors of the log before it."""
    return click.argument("name", shell_complete=lambda context, _, begun: _completed(context, begun, _cursors))


def pin_argument() -> Callable[[F], F]:
    """Make an argument that completes the names of the pins of the log before it."""
    return click.argument("name", shell_complete=complete_pins)


def complete_pins(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the names of the pins of the log on the line."""
    del parameter
    return _completed(context, begun, _pins)


def complete_logs(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the names of logs."""
    del parameter
    return _completed(context, begun, _logs)


def complete_names_below(context: click.Context, folder: str, begun: str) -> list[str]:
    """Complete the names of the logs below another name, without that."""
    found = _completed(context, f"{folder}/{begun}", _logs)
    return [log.removeprefix(f"{folder}/") for log in found]


def _completed(context: click.Context, begun: str, names: Names) -> list[str]:
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
