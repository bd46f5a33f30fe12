"""Garbage documents, pins, policies, vacancies: damage is an error that names them; a forged one costs no record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.hostile.documents import GOLDEN, NAMES, dumped
from tests.hostile.documents import load as load_other
from tests.hostile.documents import stored as stored_other
from tests.hostile.test_documents import HOSTILE, changed_bytes, extensions, flips, swapped_blocks, truncations
from tests.hostile.test_made_json import JSON, changed, places
from tests.stores import life_store
from wal3_core import CursorStore, LogReader, LogWriter, MemoryStore, PinStore
from wal3_core.errors import CorruptError, LogError
from wal3_core.format import strict_json
from wal3_core.format.garbage import Garbage
from wal3_core.format.pin import Pin
from wal3_core.format.policy import Policy
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import JsonObject
from wal3_core.format.vacancy import Vacancy
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.runtime import shared_runtime

POLICIES = ("policy", "policy_with_a_limit", "policy_that_compacts", "policy_that_arranges", "policy_of_a_view")
KINDS = ("garbage", "garbage_of_orphans", "pin", *POLICIES, "vacancy")
every_kind = pytest.mark.parametrize("name", KINDS)


def stored(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


def content(name: str) -> JsonObject:
    document: JsonObject = json.loads(stored(name))
    del document["checksum"]
    return document


def sealed(opened: bytes) -> bytes:
    return strict_json.with_checksum(opened[:-1])


Value = Garbage | Pin | Policy | Vacancy


def load(name: str, data: bytes) -> Value:
    match name:
        case "pin":
            return Pin.from_bytes(data, what="pin/golden.json")
        case _ if name in POLICIES:
            return Policy.from_bytes(data, what="golden policy.json")
        case "vacancy":
            return Vacancy.from_fields(strict_json.load_checksummed(data, what="golden MANIFEST", bytes_max=10_000))
    return Garbage.from_bytes(data, what="gc/golden")


def accepted(name: str, opened: bytes) -> Value | None:
    """Decode a document with a valid checksum; None for a CorruptError. The result must encode to the same content."""
    data = sealed(opened)
    try:
        found = load(name, data)
    except CorruptError:
        return None
    assert load(name, found.to_bytes()) == found
    assert json.loads(found.to_bytes()) == json.loads(data)
    return found


@every_kind
@pytest.mark.parametrize(
    "damage", [flips, truncations, extensions, changed_bytes, swapped_blocks], ids=lambda damage: damage.__name__
)
def test_every_damage_is_an_error_that_names_the_document(
    name: str, damage: Callable[[bytes], Iterator[bytes]]
) -> None:
    """INV-9."""
    data, count = stored(name), 0
    load(name, data)

    for damaged in damage(data):
        if damaged == data:
            continue
        with pytest.raises(CorruptError) as caught:
            load(name, damaged)
            pytest.fail(f"{damaged!r}")
        assert "golden" in str(caught.value)
        count += 1

    assert count >= 250


@pytest.mark.parametrize(
    ("name", "other"),
    [(one, other) for one in KINDS for other in (*KINDS, *NAMES) if one.split("_")[0] != other.split("_")[0]],
)
def test_one_kind_of_document_is_never_read_as_another(name: str, other: str) -> None:
    opened = stored(other) if other in KINDS else stored_other(other)
    document = json.loads(opened)
    document.pop("checksum", None)

    assert accepted(name, dumped(document)) is None
    if other in NAMES:
        with pytest.raises(CorruptError):
            load_other(other, stored(name))


@every_kind
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_under_a_valid_checksum_is_an_error(name: str, case: str) -> None:
    with pytest.raises(CorruptError) as caught:
        load(name, sealed(HOSTILE[case]))

    assert len(str(caught.value)) < 1000


@every_kind
@settings(max_examples=some(100))
@given(value=JSON)
def test_any_json_is_an_error(name: str, value: object) -> None:
    assert accepted(name, json.dumps(value).encode()) is None
    assert accepted(name, json.dumps({"format_version": 1, "rest": value}).encode()) is None


CHANGES = st.sampled_from(["delete", "replace", "double", "reverse", "nudge", "wrap", "add"])


@pytest.mark.slow
@every_kind
@settings(max_examples=some(150))
@given(data=st.data())
def test_document_changed_anywhere_under_a_valid_checksum_is_an_error_or_sound(name: str, data: st.DataObject) -> None:
    """Hypothesis chooses which fields are changed, and how."""
    document = content(name)
    for _ in range(data.draw(st.integers(1, 3))):
        spots = list(places(document))
        changed(document, data.draw(st.sampled_from(spots)), data.draw(CHANGES), data.draw(JSON))
    try:
        opened = dumped(document)
    except ValueError:
        return

    found = accepted(name, opened)

    if isinstance(found, Garbage):
        found.check_stored("gc/golden")
    if isinstance(found, Pin):
        found.manifest.check()


# Values that other fields of the document confirm. A garbage document's other numbers are checked against the log.
BORNE_OUT = {
    "garbage": {
        ("format_version",),
        ("first", "seq_no"),
        ("dropped", 0, "snapshot", "setsum"),
        ("dropped", 0, "snapshot", "last_seq_no"),
        ("dropped", 0, "snapshot", "limit", "offset"),
        ("dropped", 1, "fragment", "path"),
        ("dropped", 1, "fragment", "fragment_seq_no"),
        ("dropped", 1, "fragment", "start", "offset"),
        ("replaced", 0, "setsum"),
    },
    "garbage_of_orphans": {("format_version",), ("orphans", 0, "path")},
    "pin": {("format_version",), ("manifest",)},
    "policy": {("format_version",)},
    "policy_with_a_limit": {("format_version",)},
    "policy_that_compacts": {("format_version",), ("cleanup",)},
    "policy_that_arranges": {("format_version",)},
    "policy_of_a_view": {("format_version",)},
    "vacancy": {("format_version",), ("vacant",)},
}


@every_kind
def test_value_confirmed_by_the_rest_of_a_document_cannot_be_changed(name: str) -> None:
    document = content(name)
    stands_alone = set()
    for place in places(document):
        forged = deepcopy(document)
        holder = forged
        for step in place[:-1]:
            holder = holder[step]
        value = holder[place[-1]]
        if isinstance(value, dict | list | bool):
            continue
        other = abs(value - 1) if isinstance(value, int) else f"{value[:-1]}{'1' if value[-1] != '1' else '2'}"
        holder[place[-1]] = other
        if accepted(name, dumped(forged)) is not None:
            stands_alone.add(place)

    assert BORNE_OUT[name] <= set(places(document))
    assert BORNE_OUT[name].isdisjoint(stands_alone)


@every_kind
def test_impossible_numbers_and_names_are_refused(name: str) -> None:
    """Each leaf is given types and values that it cannot have."""
    document = content(name)
    for place in places(document):
        for value in (None, -1, 2**64, 1.5, [], {}, "\ud800"):
            forged = deepcopy(document)
            changed(forged, place, "replace", value)
            if forged == document:
                continue
            try:
                opened = json.dumps(forged).encode()
            except ValueError:
                continue
            # An empty list is valid where there may be none.
            if value == [] and place[-1] in {"replaced", "dropped", "orphans"}:
                continue
            assert accepted(name, opened) is None, f"{place}: {value!r}"


# ---------------------------------------------------------------------- effects of forged documents


def grown(store: MemoryStore) -> None:
    with LogWriter.open_or_create(store, "a") as writer:
        for number in range(8):
            writer.append(b"%d" % number)
    CursorStore(store, "a").create("reader", LogPosition(5, 0))


NOW = CollectorOptions(interval_s=0, fraction_max=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["garbage", "garbage_of_orphans"])
@settings(max_examples=some(40))
@given(data=st.data())
def test_no_forged_garbage_document_costs_a_record(name: str, data: st.DataObject) -> None:
    """At worst it stops the collection."""
    store = MemoryStore(shared_runtime())
    grown(store)
    manifest = LogReader.open(store, "a").manifest()
    document = content(name)
    document["pruned"] = data.draw(st.booleans())
    mine = [{"fragment": pointer.to_json()} for pointer in manifest.fragments]
    document["dropped"] = data.draw(st.sampled_from([document["dropped"], mine, mine[:3], mine[3:]]))
    document["orphans"] = [{"path": pointer.path} for pointer in manifest.fragments[: data.draw(st.integers(0, 8))]]
    place = data.draw(st.sampled_from([manifest.first, manifest.next]))
    document["first"] = place.to_json()
    forged = sealed(dumped(document))
    life_store(store, "a").create(f"gc/GARBAGE.{'a' * 64}.{'b' * 16}", forged)

    for act in (Collector(store, "a", options=NOW).resume_all, lambda: delete_all(store)):
        try:
            act()
        except LogError:
            continue

    assert [record.offset for record in LogReader.open(store, "a").records()] == list(range(1, 9))


def delete_all(store: MemoryStore) -> None:
    deleter = Deleter(store, "a", options=NOW)
    for meta in deleter.documents():
        deleter.delete(meta.path)


def test_pin_under_a_name_that_leads_elsewhere_is_refused(memory_store: MemoryStore) -> None:
    grown(memory_store)
    life_store(memory_store, "a").create("pin/a/b.json", stored("pin"))

    with pytest.raises(CorruptError, match=r"pin/a/b\.json"):
        PinStore(memory_store, "a").list()
