"""What every command needs: the store that was named, opened when it is first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Session:
    """One call of the command."""

    url: str | None

    def store(self) -> ObjectStore:
        """Open the named store; UsageError when none was named."""
        if self.url is None:
            message = "no store named: give --store URL before the command, or set WAL3_STORE"
            raise click.UsageError(message)
        return open_named(self.url)


def open_named(url: str) -> ObjectStore:
    """Open a store by its URL; a path that starts with ``/`` or ``.`` is a local directory."""
    return open_store(Path(url).resolve().as_uri() if url.startswith(("/", ".")) else url)


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line, for programs.")
