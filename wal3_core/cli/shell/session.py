"""One call of the command: the named store, and the options that all commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

from wal3_core.cli.shell.stores import check_store, whole_url
from wal3_core.fleet.discovery import list_logs
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.storage.object_store import ObjectStore

    F = TypeVar("F", bound=Callable[..., object])

_SENTENCE_LENGTH_MAX = 1000


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

    def named_logs(self, logs: Sequence[str], *, all_logs: bool, verb: str) -> tuple[ObjectStore, Sequence[str]]:
        """Return the store, and the logs that a command is for: those named, or with --all every one.

        UsageError when neither or both are given, before the store is asked; InvalidRequestError when it is none.
        """
        if bool(logs) == all_logs:
            raise click.UsageError(f"name the logs to {verb}, or give --all")
        store = self.store()
        found = logs or sorted(list_logs(store))
        if not found:
            check_store(store)
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
