"""Finding the logs of a store: one listing of folders per log and per folder above it, whatever the logs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.model.paths import RESERVED_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.storage.object_store import ObjectStore


def list_logs(store: ObjectStore, prefix: str = "") -> Iterator[str]:
    """Name the logs of a store in order; with a prefix, that log and those below it (whole parts of names)."""
    yield from _below(store, f"{prefix.strip('/')}/" if prefix.strip("/") else "")


def _below(store: ObjectStore, folder: str) -> Iterator[str]:
    names = [found.removeprefix(folder).removesuffix("/") for found in store.list_folders(folder)]
    if folder and "manifest" in names:
        yield folder.removesuffix("/")
    for name in names:
        if name not in RESERVED_PARTS:
            yield from _below(store, f"{folder}{name}/")
