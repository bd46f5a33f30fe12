"""Links to the runbook, and the commands that it begins with."""

from __future__ import annotations

import shlex
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dagster import MetadataValue, TextMetadataValue, UrlMetadataValue

if TYPE_CHECKING:
    from wal3_orchestration.scope import Scope


class Section(StrEnum):
    """A section of docs/operations.md, as its anchor."""

    UNSOUND = "a-check-turns-red-the-log-is-unsound"
    MANIFEST = "the-manifest-is-damaged-or-missing"
    COPY = "copying-a-log-and-restoring-one"
    GARBAGE = "a-check-turns-red-garbage"
    REFUSED = "a-collection-refuses"
    CURSOR = "a-cursor-is-stuck"
    BAD_CURSOR = "a-cursor-is-damaged"
    COLLECTION = "turning-collection-on"
    DISCOVERY = "discovery-fails-another-store-or-many-logs-gone"
    DIRTY = "a-check-turns-red-dirty-logs"
    PRESSURE = "a-fleet-refuses-appends-back-pressure"
    COMPACTION = "operating-key-compaction"
    QUEUE_OLD = "a-queues-oldest-item-is-old"
    DEAD_LETTERS = "dead-letters"
    SNAPSHOTS = "the-tree-of-snapshots-is-lopsided"
    DAGSTER = "dagster"


def address(scope: Scope, section: Section) -> str:
    """Return where a section is."""
    return f"{scope.runbook}#{section}"


def link(scope: Scope, section: Section) -> UrlMetadataValue | TextMetadataValue:
    """Return a section as metadata: something to click on if the runbook has a URL."""
    where = address(scope, section)
    return MetadataValue.url(where) if urlsplit(where).scheme else MetadataValue.text(where)


def command(scope: Scope, *words: str) -> str:
    """Return a ``wal3`` command on the store, ready for a shell."""
    store = ("--store", scope.store_url) if scope.store_url else ()
    return shlex.join(["wal3", *store, *words])
