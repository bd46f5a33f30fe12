"""Finding the logs of a store: one listing of folders per log and per folder above it, whatever the logs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import MANIFEST, is_name_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.storage.object_store import ObjectStore


def list_logs(store: ObjectStore, prefix: str = "") -> Iterator[str]:
    """Name the logs of a store in order; with a prefix, that log and those below it (whole parts of names)."""
    yield from _below(store, f"{prefix.strip('/')}/" if prefix.strip("/") else "")


def lost_manifest(store: ObjectStore, log: str) -> CorruptError | None:
    """Say what is wrong with a log whose manifest was not found; None when it was destroyed since it was listed."""
    if next(list_logs(store, log), None) != log:
        return None
    message = (
        f"log {store.url}/{log}: expected {MANIFEST} beside its fragments, found none:"
        f" a copy under way or cut short, or a lost manifest: restore it"
    )
    return CorruptError(message)


def _below(store: ObjectStore, folder: str) -> Iterator[str]:
    names = [found.removeprefix(folder).removesuffix("/") for found in store.list_folders(folder)]
    # Fragments without a manifest are a log, too: one that wants help.
    if folder and not {"manifest", "log"}.isdisjoint(names):
        yield folder.removesuffix("/")
    for name in names:
        # A folder that could not be part of a log's name is somebody else's.
        if is_name_part(name):
            yield from _below(store, f"{folder}{name}/")
