"""A pin is a whole manifest, kept as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.format.trees import Tree
from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.manifest import Manifest, Seal
from wal3_core.format.pin import Pin

GOLDEN = Path(__file__).parent.parent / "golden"


def pin_of(manifest: Manifest) -> Pin:
    return Pin(
        manifest=manifest, reason="the audit", epoch_us=7, writer="w", generation=2, complete=True, log_id=LOG_ID
    )


def forged(pin: Pin, **changes: object) -> bytes:
    document = json.loads(pin.to_bytes())
    del document["checksum"]
    return strict_json.dump_checksummed({**document, **changes})


def test_format_is_what_earlier_versions_wrote() -> None:
    tree = Tree()
    tree.leaf(2)
    tree.append(1)
    path = GOLDEN / "pin.json"

    pin = pin_of(tree.manifest)

    assert path.read_bytes() == pin.to_bytes(), f"the format changed: {path} holds what earlier versions wrote"
    assert Pin.from_bytes(path.read_bytes(), what="pin") == pin


def test_manifest_reads_back_byte_for_byte(held: Manifest) -> None:
    sealed = held.apply_seal(Seal(reason='"quoted"\n', sealed_by="\u00e9", timestamp_us=9, successor="t"))

    for manifest in (held, sealed, replace(held, fence=3)):
        again = Pin.from_bytes(pin_of(manifest).to_bytes(), what="pin")
        assert again.manifest == manifest
        assert again.manifest.to_bytes() == manifest.to_bytes()


def test_every_shorter_document_is_an_error(held: Manifest) -> None:
    stored = pin_of(held).to_bytes()

    for length in range(len(stored)):
        with pytest.raises(CorruptError, match="pin/audit"):
            Pin.from_bytes(stored[:length], what="pin/audit")


def test_forged_document_is_an_error(held: Manifest) -> None:
    pin = pin_of(held)
    unbalanced = json.loads(held.to_bytes())
    del unbalanced["checksum"]
    unbalanced["num_records"] += 1

    for changes, complaint in (
        ({"format_version": 3}, "format_version 2, found 3: a newer wal3"),
        ({"log_id": "0" * 32}, "expected the manifest of log 0000"),
        ({"more": 1}, "no further fields, found more"),
        ({"epoch_us": -1}, "u64"),
        ({"complete": 1}, "true or false"),
        ({"manifest": {}}, "a string of text"),
        ({"manifest": ""}, "pin.manifest"),
        ({"manifest": held.to_bytes().decode().replace('"fence":0', '"fence":1')}, "its own checksum"),
        ({"manifest": strict_json.dump_checksummed(unbalanced).decode()}, "13 records"),
    ):
        with pytest.raises(CorruptError, match=complaint):
            Pin.from_bytes(forged(pin, **changes), what="pin")
