"""What goes along where a log goes on somewhere else: in a successor, a copy, an update of a copy. Pure.

Nothing else decides it. Source: docs/protocol/copies.md, "What a log owns".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wal3_core.format.cursor import Cursor, Owner, is_writers
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import QUEUE_CURSOR, LogId
from wal3_core.format.policy import Policy
from wal3_core.format.position import LogPosition

# The owners whose logs have no successor, and why.
WITHOUT_SUCCESSOR = {
    Owner.ROLLUP: "servers mark in a dirty log by its name: its successor would get no markers",
    Owner.QUEUE: "a queue's items lie in its log alone: its successor would be no queue",
}


def take_cursor(
    name: str, cursor: Cursor, first: LogPosition, limit: LogPosition, *, migrates: bool = False
) -> Cursor | None:
    """Return a log's cursor as it is in another log that begins at ``first`` and ends at ``limit``; None: it has none.

    The cursor names the life that it comes from, until its owner moves it. ``migrates`` says that the other log is the
    successor, and no copy.
    """
    writers = is_writers(name, cursor)
    if migrates and not writers and cursor.owner in WITHOUT_SUCCESSOR:
        return None
    found = replace(cursor.within(limit), carried_from=cursor.log_id)
    if found.position.offset >= first.offset:
        return found
    if migrates or writers:
        return replace(found, position=first, extension=found.extension.behind)
    return None if found.pins else found


def take_cursors(
    cursors: Mapping[str, Cursor], first: LogPosition, limit: LogPosition, *, migrates: bool = False
) -> dict[str, Cursor]:
    """Return a log's cursors as they are in another log that begins at ``first`` and ends at ``limit``."""
    taken = {name: take_cursor(name, cursor, first, limit, migrates=migrates) for name, cursor in cursors.items()}
    return {name: cursor for name, cursor in taken.items() if cursor is not None}


def why_no_successor(cursors: Mapping[str, Cursor]) -> str | None:
    """Say why a log with these cursors cannot have a successor; None if it can."""
    for name, cursor in cursors.items():
        # An earlier version did not say whose it is.
        owner = cursor.owner or (Owner.QUEUE if name == QUEUE_CURSOR else Owner.CONSUMER)
        if owner in WITHOUT_SUCCESSOR:
            return f"cursor {name}: {WITHOUT_SUCCESSOR[owner]}"
    return None


def take_manifest(
    source: Manifest, policy: Policy | None, *, log_id: LogId, writer: str, migrates: bool = False
) -> Manifest:
    """Return the manifest of a log that goes on from another one, before its pointers are written.

    It takes appends as the policy says that it takes along.
    """
    if migrates:
        made = Manifest.successor(source, log_id=log_id, writer=writer)
    else:
        made = replace(source, log_id=log_id, seal=None, announced=None, destroying=False, compacting=None)
    return replace(made, keyed=policy is not None and policy.has_passes, view=None if policy is None else policy.view)
