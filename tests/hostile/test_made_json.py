"""JSON made by hypothesis: an error, or a document that passes every check and encodes to the same content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.hostile.documents import NAMES, Value, content, dumped, load, sealed
from wal3_core.errors import CorruptError
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import Manifest
from wal3_core.format.strict_json import JsonValue

every_document = pytest.mark.parametrize("name", NAMES)

NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 16, 2**31, 2**32, 2**53 + 1, 2**63, 2**64 - 1, 2**64, 10**400])
TEXTS = st.sampled_from(["", "\0", "\ud800", "\ufeff", "a/../b", "0" * 64, "f" * 64, "٣" * 16, "x" * 300])
LEAVES = st.none() | st.booleans() | NUMBERS | st.integers() | TEXTS | st.text(max_size=8) | st.floats()
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)


def accepted(name: str, opened: bytes) -> Value | None:
    """Decode a document with a valid checksum; None for a CorruptError. The result passes its checks and reads back."""
    data = sealed(name, opened)
    try:
        found = load(name, data, renamed=True)
    except CorruptError:
        return None
    again = found.to_bytes()
    if isinstance(found, Manifest | Cursor):
        assert load(name, again) == found
    if isinstance(found, Manifest):
        found.check()
    assert json.loads(again) == json.loads(data) or not isinstance(found, Manifest | Cursor)
    return found


@pytest.mark.slow
@every_document
@settings(max_examples=some(150))
@given(value=JSON)
def test_any_json_is_an_error(name: str, value: object) -> None:
    assert accepted(name, json.dumps(value).encode()) is None
    assert accepted(name, json.dumps({"format_version": 1, "rest": value}).encode()) is None


@every_document
@settings(max_examples=some(150))
@given(text=st.text(alphabet='{}[]",:0123456789eE+-.truefalsn\\u \t\n', max_size=200))
def test_any_text_of_json_s_letters_is_an_error(name: str, text: str) -> None:
    assert accepted(name, text.encode()) is None


def places(value: JsonValue, holder: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a document, as the keys and indexes that lead to it."""
    if holder:
        yield holder
    if isinstance(value, dict):
        for key, each in value.items():
            yield from places(each, (*holder, key))
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from places(each, (*holder, index))


def changed(document: JsonValue, place: tuple[str | int, ...], change: str, value: object) -> None:
    """Delete, replace, repeat, move, or add to the value at a place."""
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    last = place[-1]
    match change, holder:
        case "delete", dict() | list():
            del holder[last]
        case "double", list():
            holder.insert(last, deepcopy(holder[last]))
        case "reverse", list():
            holder.reverse()
        case "nudge", dict() | list() if isinstance(holder[last], int):
            holder[last] += value if isinstance(value, int) and -3 < value < 3 else 1
        case "wrap", dict() | list():
            holder[last] = [holder[last]]
        case "add", dict():
            holder[f"{last}2"] = deepcopy(holder[last])
        case _:
            holder[last] = value


@pytest.mark.slow
@every_document
@settings(max_examples=some(400))
@given(data=st.data())
def test_sound_document_with_a_field_changed_is_an_error_or_still_holds(name: str, data: st.DataObject) -> None:
    """As changed by an attacker who also fixes the checksum: every rule behind it is tested."""
    document = content(name)
    before = dumped(document)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(document)) or [("format_version",)]))
        kinds = st.sampled_from(["delete", "double", "reverse", "nudge", "wrap", "add", "replace", "replace"])
        changed(document, place, data.draw(kinds), data.draw(LEAVES))

    after = json.dumps(document, separators=(",", ":")).encode()

    assert accepted(name, after) is not None or after != before


@every_document
@given(data=st.data())
def test_field_given_twice_is_an_error_even_with_the_same_value(name: str, data: st.DataObject) -> None:
    text = dumped(content(name)).decode()
    key = data.draw(st.sampled_from(["format_version", "offset", "generation", "fence", "setsum", "path"]))
    value = data.draw(st.sampled_from(["1", "0", '""', "null", "[]"]))
    if f'"{key}":' not in text:
        return

    assert accepted(name, text.replace(f'"{key}":', f'"{key}":{value},"{key}":', 1).encode()) is None


def test_text_that_cannot_be_encoded_is_an_error() -> None:
    document = {**content("cursor"), "writer": "\ud800"}

    assert accepted("cursor", dumped(document)) is None


# Values that nothing else in a document confirms: its writer and time, times between the times around them, and the
# names of other objects. Only the checksum protects them, or in a snapshot its name.
CURSOR = {
    ("log_id",),
    ("generation",),
    ("position", "offset"),
    ("position", "timestamp_us"),
    ("epoch_us",),
    ("writer",),
}
UNCHECKED = {
    "manifest": {
        ("log_id",),
        ("generation",),
        ("fence",),
        ("writer",),
        ("first", "position", "timestamp_us"),
        ("next", "position", "timestamp_us"),
        ("epochs", 0, "epoch"),
        ("epochs", 0, "writer"),
        ("epochs", 0, "first_seq_no"),
        ("snapshots", 0, "path"),
        ("snapshots", 0, "num_pointers"),
        ("snapshots", 0, "start", "timestamp_us"),
        ("snapshots", 0, "limit", "timestamp_us"),
        ("fragments", 0, "start", "timestamp_us"),
        ("fragments", 1, "start", "timestamp_us"),
        ("seal", "reason"),
        ("seal", "sealed_by"),
        ("seal", "timestamp_us"),
        ("seal", "successor"),
    },
    "manifest_of_a_keyed_log": {
        ("log_id",),
        ("generation",),
        ("fence",),
        ("writer",),
        ("first", "position", "timestamp_us"),
        ("next", "position", "timestamp_us"),
        ("epochs", 0, "epoch"),
        ("epochs", 0, "writer"),
        ("epochs", 0, "first_seq_no"),
        *(("fragments", index, "start", "timestamp_us") for index in range(4)),
    },
    "manifest_of_a_view": {
        ("log_id",),
        ("generation",),
        ("fence",),
        ("writer",),
        ("first", "position", "timestamp_us"),
        ("next", "position", "timestamp_us"),
        ("epochs", 0, "epoch"),
        ("epochs", 0, "writer"),
        ("epochs", 0, "first_seq_no"),
        *(("fragments", index, "start", "timestamp_us") for index in range(4)),
    },
    "manifest_of_a_staged_append": {
        ("log_id",),
        ("generation",),
        ("fence",),
        ("writer",),
        ("first", "position", "timestamp_us"),
        ("next", "position", "timestamp_us"),
        ("epochs", 0, "epoch"),
        ("epochs", 0, "writer"),
        ("epochs", 0, "first_seq_no"),
        *(("fragments", index, "start", "timestamp_us") for index in range(4)),
    },
    "cursor": CURSOR,
    "cursor_of_keys": {
        *CURSOR,
        ("carried_from",),
        # The owner's, which alone reads it.
        ("extension", "terms", "prefix"),
        *(("extension", "ahead", "keys", key) for key in ("", "YQ==", "YQA=")),
        ("extension", "limit"),
    },
    "cursor_of_a_subscription": {
        *CURSOR,
        ("extension", "terms", "token"),
        ("extension", "terms", "topics", 0, "pattern"),
        ("extension", "terms", "topics", 1, "pattern"),
        ("extension", "ahead", "done"),
        ("extension", "limit"),
    },
    "cursor_of_a_writer": {
        *CURSOR,
        ("appends", 0, "naming"),
        ("appends", 0, "start"),
        ("appends", 0, "limit"),
        ("appends", 1, "naming"),
        ("appends", 1, "series"),
        ("appends", 1, "number"),
    },
    "snapshot": {("log_id",), ("fence",), ("pointers", 1, "start", "timestamp_us")},
    "snapshot_of_snapshots": {("log_id",), ("fence",), ("pointers", 0, "path"), ("pointers", 0, "num_pointers")},
}


@every_document
def test_every_other_number_and_name_of_a_document_is_confirmed_by_the_rest(name: str) -> None:
    """Change each leaf a little and fix the checksum: a rule refuses it, or it is in the list of unconfirmed values."""
    document = content(name)
    stands_alone = set()
    for place in places(document):
        forged = deepcopy(document)
        holder = forged
        for step in place[:-1]:
            holder = holder[step]
        value = holder[place[-1]]
        if isinstance(value, dict | list):
            continue
        # Replace a digit by another, as in a path or a hash, so that it stays well-formed.
        other = value - 1 if isinstance(value, int) and value else 1 if isinstance(value, int) else None
        holder[place[-1]] = other if other is not None else f"{value[:-1]}{'1' if value[-1] != '1' else '2'}"
        if accepted(name, dumped(forged)) is not None:
            stands_alone.add(place)

    assert stands_alone == UNCHECKED[name]
