"""The documents of a log as earlier versions wrote them, and how each is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.stores import LOG_ID
from wal3_core.format import strict_json
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import snapshot_path
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.format.strict_json import JsonObject

GOLDEN = Path(__file__).parent.parent / "golden"
CURSORS = ("cursor", "cursor_of_keys", "cursor_of_a_subscription", "cursor_of_a_writer")
MANIFESTS = ("manifest", "manifest_of_a_keyed_log", "manifest_of_a_staged_append", "manifest_of_a_view")
NAMES = (*MANIFESTS, *CURSORS, "snapshot", "snapshot_of_snapshots")
Value = Manifest | Cursor | Snapshot


def stored(name: str) -> bytes:
    """The document's bytes."""
    return (GOLDEN / f"{name}.json").read_bytes()


def content(name: str) -> JsonObject:
    """The document without its checksum."""
    document: JsonObject = json.loads(stored(name))
    document.pop("checksum", None)
    return document


def dumped(document: JsonObject) -> bytes:
    """Encode as another program would, without any check."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def sealed(name: str, opened: bytes) -> bytes:
    """Add the valid checksum to a document's content."""
    if name.startswith("snapshot"):
        return opened
    return strict_json.with_checksum(opened[:-1])


def load(name: str, data: bytes, *, renamed: bool = False) -> Value:
    """Decode the document; a snapshot under its stored name, or ``renamed`` to the hash of the bytes."""
    match name:
        case "manifest" | "manifest_of_a_keyed_log" | "manifest_of_a_staged_append" | "manifest_of_a_view":
            return Manifest.from_bytes(data)
        case "cursor" | "cursor_of_keys" | "cursor_of_a_subscription" | "cursor_of_a_writer":
            return Cursor.from_bytes(data, what="cursor/golden.json")
    pointer = pointer_of(name)
    return Snapshot.from_bytes(data, replace(pointer, path=snapshot_path(pointer.setsum, data)) if renamed else pointer)


def pointer_of(name: str) -> SnapshotPointer:
    """The pointer to a stored snapshot."""
    fields = strict_json.load(stored(name), what=name, bytes_max=10_000)
    reader = FragmentPointer.from_json if fields.integer("depth") == 1 else SnapshotPointer.from_json
    pointers = tuple(reader(each) for each in fields.objects("pointers", count_max=9))
    return Snapshot(pointers, fields.integer("fence"), LOG_ID).pointer_to(stored(name))


def named(name: str) -> str:
    """The name of the document in errors."""
    manifests = dict.fromkeys(MANIFESTS, "manifest/MANIFEST.json")
    cursors = dict.fromkeys(CURSORS, "cursor/golden.json")
    known = {**manifests, **cursors}
    return known.get(name) or f"snapshot {pointer_of(name).path}"
