"""What every command needs: the named store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlencode

import click

from wal3_core.cli.targets import check_directory
from wal3_core.storage.open_store import open_store
from wal3_core.storage.store_urls import options_of_url, split_store_url

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore


_SENTENCE_LENGTH_MAX = 1000
_REMOTE = frozenset({"s3", "gs", "az"})


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command."""

    url: str | None
    timeout_s: float | None = None

    def store(self) -> ObjectStore:
        """Open the named store; UsageError when none was named."""
        return open_store(self.named_url())

    def named_url(self) -> str:
        """Return the named store's URL, with the timeout; UsageError when none was named."""
        if self.url is None:
            message = "no store named: give --store URL before the command, or set WAL3_STORE"
            raise click.UsageError(message)
        return whole_url(self.url, timeout_s=self.timeout_s)


def open_named(url: str, *, timeout_s: float | None = None) -> ObjectStore:
    """Open a store by its URL; see ``whole_url``."""
    return open_store(whole_url(url, timeout_s=timeout_s))


def whole_url(url: str, *, timeout_s: float | None = None) -> str:
    """Return the URL of a store; a path that starts with ``/`` or ``.`` is a local directory.

    ``timeout_s`` is added to the URL of a remote store; a directory takes no timeout.
    """
    if url.startswith(("/", ".")):
        url = Path(url).resolve().as_uri()
    parts = split_store_url(url)
    if parts.scheme == "file":
        check_directory(Path(os.fsdecode(unquote_to_bytes(parts.path))))
    if timeout_s is not None and parts.scheme in _REMOTE:
        options = {**options_of_url(url), "timeout_s": f"{timeout_s:g}"}
        url = parts._replace(query=urlencode(options, safe=":/")).geturl()
    return url


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
