"""One call of the command: the store that is named, whether it is one, and the options that all commands share.

A mistyped place must not look like a store without logs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, unquote_to_bytes, urlencode, urlsplit

import click

from wal3_core.errors import InvalidRequestError, LogError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.format.paths import MANIFEST, STORE_IDENTITY, is_name_part
from wal3_core.runtime import shared_runtime
from wal3_core.store.backends.local_roots import is_root
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store
from wal3_core.store.retrying import with_retries
from wal3_core.store.store_urls import options_of_url, split_store_url

F = TypeVar("F", bound=Callable[..., object])

_SENTENCE_LENGTH_MAX = 1000
NO_LOGS = "no logs: `wal3 init LOG` creates one"
# Objects of a place, or folders of a store, that are read to say what it is.
_NAMES_MAX = 1000
_REMOTE = frozenset({"s3", "gs", "az"})
_ADVICE = "correct --store or WAL3_STORE; `wal3 init LOG` begins a store there"


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command."""

    url: str | None
    timeout_s: float | None = None

    def store(self, url: str | None = None) -> ObjectStore:
        """Open the store of a URL, by default the named one; UsageError when none was named."""
        return open_store(self.url_of(url))

    def url_of(self, url: str | None = None) -> str:
        """Return the URL with the timeout, by default that of the named store; UsageError when none was named."""
        url = self.url if url is None else url
        if url is None:
            raise click.UsageError("no store named: give --store URL before the command, or set WAL3_STORE")
        return whole_url(url, timeout_s=self.timeout_s)

    def named_logs(
        self, logs: Sequence[str], *, all_logs: bool, verb: str, as_json: bool
    ) -> tuple[ObjectStore, Sequence[str]]:
        """Return the store, and the logs that a command is for: those named, or with --all every one; says if none is.

        UsageError when neither or both are given, before the store is opened; InvalidRequestError when it is none.
        """
        if bool(logs) == all_logs:
            raise click.UsageError(f"name the logs to {verb}, or give --all")
        store = self.store()
        found = logs or sorted(list_logs(store))
        if not found:
            check_store(store)
            if not as_json:
                click.echo(NO_LOGS)
        return store, found


class Commands(click.Group):
    """A group that lists its commands with the whole first sentence of each one's help."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command."""
        cmd.short_help = cmd.short_help or cmd.get_short_help_str(_SENTENCE_LENGTH_MAX)
        super().add_command(cmd, name)


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, for programs.")
lines_option = click.option(
    "--json", is_flag=True, expose_value=False, help="Print one JSON object per line, as without this option."
)


def session_and_json(command: F) -> F:
    """Pass the session, and add --json."""
    return json_option(pass_session(command))  # type: ignore[return-value]  # the same, with less to give


def whole_url(url: str, *, timeout_s: float | None = None) -> str:
    """Return the URL of a store; a path that starts with ``/`` or ``.`` is a local directory, which takes no timeout.

    InvalidRequestError for a path that is no directory, and cannot become one: a file is in the way.
    """
    if url.startswith(("/", ".")):
        url = Path(url).resolve().as_uri()
    parts = split_store_url(url)
    if parts.scheme == "file":
        path = Path(os.fsdecode(unquote_to_bytes(parts.path)))
        taken = next((each for each in (path, *path.parents) if os.path.lexists(each)), None)
        # A link to nothing, and a folder that cannot be entered, are reported by what uses them.
        if taken is not None and os.access(taken, os.F_OK) and not taken.is_dir():
            message = f"store {path}: expected a directory, found that {taken} is a file: correct --store or WAL3_STORE"
            raise InvalidRequestError(message)
    return url if timeout_s is None else with_options(url, timeout_s=f"{timeout_s:g}")


def with_options(url: str, **options: str) -> str:
    """Return the URL of the same store with other options; a directory takes none."""
    parts = split_store_url(url)
    if parts.scheme not in _REMOTE:
        return url
    return parts._replace(query=urlencode({**options_of_url(url), **options}, safe=":/")).geturl()


def check_store(store: ObjectStore) -> None:
    """Raise InvalidRequestError for a place that is no store: nothing there has come from logs.

    A directory is a store since its first write; any place is with an identity, or with documents of logs, even
    of destroyed ones.
    """
    parts = urlsplit(store.url)
    if parts.scheme == "memory":
        return
    store = with_retries(store, shared_runtime())
    found = "no objects"
    if parts.scheme == "file":
        root = Path(unquote(parts.path))
        if is_root(root):
            return
        found = "none" if not root.exists() else "a directory without logs"
    elif store.head(STORE_IDENTITY) is not None:
        return
    for meta in islice(store.list_objects(""), _NAMES_MAX):
        if meta.path == STORE_IDENTITY or meta.path.endswith(f"/{MANIFEST}"):
            return
        found = f"other objects, like {meta.path!r}"
    raise InvalidRequestError(f"store {store.url}: expected a store, found {found}: {_ADVICE}")


def similar_logs(store: ObjectStore, log: str) -> str:
    """Say which logs beside one that was not found have names much like its own; one listing."""
    above, slash, part = log.rpartition("/")
    with suppress(LogError):
        folders = islice(store.list_folders(f"{above}{slash}"), _NAMES_MAX)
        names = {each.removesuffix("/").rpartition("/")[2] for each in folders}
        # A log that was destroyed has left its folder.
        by_case = {name.lower(): name for name in filter(is_name_part, names - {part})}
        found = [by_case[each] for each in get_close_matches(part.lower(), by_case)]
        if found:
            return f": did you mean {' or '.join(f'{above}{slash}{name}' for name in found)}?"
    return ""


def of_target(error: LogError, opened: Callable[[], ObjectStore] | None, log: str | None) -> LogError:
    """Return the error to report: for a log that was not found, also that there is no store, or similar names.

    ``opened`` opens the named store, if one was named.
    """
    if not isinstance(error, LogNotFoundError) or opened is None:
        return error
    try:
        store = opened()
        check_store(store)
    except InvalidRequestError:
        found = "found none, and no store (if one is expected, correct --store or WAL3_STORE)"
        return type(error)(str(error).replace("found none", found, 1))
    except LogError:
        return error
    if log is not None and str(error).partition(": ")[0].endswith(f"/{log}"):
        return type(error)(f"{error}{similar_logs(store, log)}")
    return error
