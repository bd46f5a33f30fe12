"""The manifest's transitions and invariants. INV numbers as in docs/protocol.md."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.format.conftest import TOKEN, fragments_after
from tests.stores import LOG_ID
from wal3_core.errors import CorruptError, InvalidRequestError, SealedError
from wal3_core.format import strict_json
from wal3_core.format.cursor import Cursor
from wal3_core.format.manifest import NONE_KNOWN, Boundary, Durability, Epoch, Manifest, Seal
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import Snapshot, SnapshotPointer, sum_setsums
from wal3_core.options import View

GOLDEN = Path(__file__).parent.parent / "golden"
FIXTURE_SAFE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def rolled(manifest: Manifest, count: int) -> tuple[Manifest, Snapshot, SnapshotPointer]:
    snapshot = Snapshot(manifest.fragments[:count], manifest.fence, manifest.log_id)
    pointer = snapshot.pointer_to(snapshot.to_bytes())
    return manifest.apply_snapshot(pointer, snapshot.pointers), snapshot, pointer


def test_new_manifest_is_empty_and_starts_at_offset_one(empty: Manifest) -> None:
    empty.check()

    assert empty.first == empty.next == Boundary(FragmentSeqNo(1), LogPosition(1, empty.next.position.timestamp_us))
    assert (empty.generation, empty.num_records, empty.setsum) == (1, 0, EMPTY)


def test_appended_fragments_move_next_and_setsum(empty: Manifest, entry: Epoch) -> None:
    added = fragments_after(empty, 4)

    manifest = empty.apply_fragments(entry, added)

    assert manifest.next == Boundary(FragmentSeqNo(5), added[-1].limit)
    assert manifest.first == empty.first
    assert manifest.setsum == sum_setsums(added)
    assert (manifest.num_records, manifest.num_bytes) == (12, 100 + 101 + 102 + 103)
    assert manifest.epochs == (entry,)


def test_epoch_is_entered_once_and_only_the_newest_sixteen_stay(empty: Manifest) -> None:
    manifest = empty
    for epoch in range(1, 21):
        entry = Epoch(epoch, TOKEN, manifest.next.seq_no)
        for _ in range(2):
            manifest = manifest.apply_fragments(entry, fragments_after(manifest, 1))

    assert [entry.epoch for entry in manifest.epochs] == list(range(5, 21))
    assert [entry.first_seq_no for entry in manifest.epochs] == list(range(9, 41, 2))


def test_epoch_table_resolves_what_became_of_a_fragment(empty: Manifest) -> None:
    """INV-4."""
    ours, theirs = Epoch(1, "a" * 16, FragmentSeqNo(1)), Epoch(2, "b" * 16, FragmentSeqNo(3))
    manifest = empty.apply_fragments(ours, fragments_after(empty, 2))
    manifest = manifest.apply_fragments(theirs, fragments_after(manifest, 2))

    def found(epoch: int, token: str, seq_no: int) -> Durability:
        return manifest.durability(epoch, token * 16, FragmentSeqNo(seq_no))

    assert [found(1, "a", number) for number in (1, 2, 3)] == ["durable", "durable", "not durable"]
    assert [found(2, "b", number) for number in (2, 3, 4, 5)] == ["not durable", "durable", "durable", "not durable"]
    assert found(2, "c", 3) == "not durable"
    assert found(3, "c", 5) == "not durable"


def test_epoch_that_left_the_table_resolves_to_unknown(empty: Manifest) -> None:
    manifest = empty
    for epoch in range(1, 18):
        manifest = manifest.apply_fragments(Epoch(epoch, TOKEN, manifest.next.seq_no), fragments_after(manifest, 1))

    assert manifest.durability(1, TOKEN, FragmentSeqNo(1)) is Durability.UNKNOWN
    assert manifest.durability(2, TOKEN, FragmentSeqNo(2)) is Durability.DURABLE


def test_snapshot_takes_the_place_of_its_run_and_the_balance_holds(held: Manifest) -> None:
    manifest, _, pointer = rolled(held, 3)

    assert manifest.snapshots == (pointer,)
    assert manifest.fragments == held.fragments[3:]
    assert (manifest.setsum, manifest.num_records, manifest.next) == (held.setsum, held.num_records, held.next)


def test_log_whose_fragments_are_all_in_snapshots_still_takes_appends(held: Manifest, entry: Epoch) -> None:
    """Writers in the field hung for ever when every fragment had moved into a snapshot."""
    manifest, _, _ = rolled(held, 4)

    grown = manifest.apply_fragments(entry, fragments_after(manifest, 1))

    assert grown.next.seq_no == held.next.seq_no + 1
    assert grown.fragments[0].start.offset == held.next.position.offset


def test_snapshot_of_a_run_that_changed_is_refused(held: Manifest) -> None:
    _, snapshot, pointer = rolled(held, 3)
    manifest, _, _ = rolled(held, 2)

    with pytest.raises(InvalidRequestError, match="expected the run it replaces"):
        manifest.apply_snapshot(pointer, snapshot.pointers)


def test_two_snapshots_with_equal_setsums_and_different_content_have_two_names(held: Manifest) -> None:
    """Snapshots in the field collided: equal setsums, different fragments inside."""
    plain = Snapshot(held.fragments, 0, LOG_ID)
    merged = Snapshot(
        (
            replace(
                held.fragments[0],
                seq_no=held.fragments[1].seq_no,
                path=held.fragments[1].path,
                limit=held.fragments[1].limit,
                setsum=sum_setsums(held.fragments[:2]),
                num_records=6,
            ),
            *held.fragments[2:],
        ),
        0,
        LOG_ID,
    )

    first, second = plain.pointer_to(plain.to_bytes()), merged.pointer_to(merged.to_bytes())

    assert first.setsum == second.setsum
    assert first.path != second.path


def test_snapshot_made_behind_another_fence_has_another_name(held: Manifest) -> None:
    """INV-7: an upload marked for deletion under an earlier fence is never taken for a later one."""
    before, after = Snapshot(held.fragments, 0, LOG_ID), Snapshot(held.fragments, 1, LOG_ID)

    assert before.pointer_to(before.to_bytes()).path != after.pointer_to(after.to_bytes()).path


def test_nothing_is_appended_after_the_seal(held: Manifest, entry: Epoch) -> None:
    """INV-6."""
    seal = Seal(reason="moved", sealed_by="operator", timestamp_us=1, successor="logs/next")

    sealed = held.apply_seal(seal)

    with pytest.raises(SealedError, match="moved"):
        sealed.apply_fragments(entry, fragments_after(sealed, 1))
    with pytest.raises(SealedError, match="moved"):
        sealed.apply_seal(seal)
    assert Manifest.from_bytes(sealed.to_bytes()) == sealed


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        ({"setsum": EMPTY}, "setsum"),
        ({"pruned": sum_setsums([])}, None),
        ({"num_records": 11}, "records"),
        ({"num_bytes": 1}, "bytes"),
        ({"next": Boundary(FragmentSeqNo(6), LogPosition(13, 0))}, "next"),
        ({"next": Boundary(FragmentSeqNo(5), LogPosition(14, 0))}, "next"),
        ({"first": Boundary(FragmentSeqNo(2), LogPosition(1, 0))}, "first"),
        ({"epochs": (Epoch(2, TOKEN, FragmentSeqNo(1)), Epoch(1, TOKEN, FragmentSeqNo(2)))}, "epochs"),
        ({"epochs": (Epoch(1, TOKEN, FragmentSeqNo(9)),)}, "epochs"),
    ],
)
def test_broken_invariant_is_refused_with_its_name(
    held: Manifest, broken: dict[str, object], match: str | None
) -> None:
    """INV-1 to INV-5."""
    changed = replace(held, **broken)

    if match is None:
        changed.check()
        return
    with pytest.raises(CorruptError, match=match):
        changed.check()


def test_gap_overlap_and_disorder_of_fragments_are_refused(held: Manifest) -> None:
    """INV-2 and INV-3."""
    a, b, c, d = held.fragments
    runs = {
        "gap": (a, c, d),
        "twice": (a, b, b, c, d),
        "order": (b, a, c, d),
        "overlap": (a, replace(b, start=LogPosition(3, b.start.timestamp_us)), c, d),
        "backwards": (a, replace(b, limit=b.start), c, d),
    }

    for name, run in runs.items():
        with pytest.raises(CorruptError):
            replace(held, fragments=run, setsum=sum_setsums(run)).check()
            pytest.fail(name)


def test_manifest_reads_back_as_written(held: Manifest) -> None:
    manifest, snapshot, pointer = rolled(held, 2)

    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert Snapshot.from_bytes(snapshot.to_bytes(), pointer) == snapshot


@FIXTURE_SAFE
@given(data=st.data())
def test_every_flipped_bit_of_a_manifest_is_an_error(held: Manifest, data: st.DataObject) -> None:
    stored = rolled(held, 2)[0].to_bytes()
    at = data.draw(st.integers(0, len(stored) * 8 - 1))
    flipped = bytearray(stored)
    flipped[at // 8] ^= 1 << at % 8

    with pytest.raises(CorruptError):
        Manifest.from_bytes(bytes(flipped))


def test_known_pointers_are_neither_encoded_nor_decoded_again(held: Manifest, entry: Epoch) -> None:
    before, _, _ = rolled(held, 2)
    known = before.text(NONE_KNOWN).texts()
    after = before.apply_fragments(entry, fragments_after(before, 2))

    text = after.text(known)

    assert text.data() == after.to_bytes()
    assert [each is known.get(each.pointer.path) for each in (*text.snapshots, *text.fragments)] == [
        *(True for _ in before.pointers),
        *(False for _ in after.fragments[len(before.fragments) :]),
    ]
    assert not any(each.text in text.unknown(known) for each in known.values())
    fields = strict_json.load(text.unknown(known), what="a", bytes_max=2**20)
    assert Manifest.from_fields(fields, known=known) == after
    assert strict_json.with_checksum(text.unknown(NONE_KNOWN)[:-1]) == text.data()


def test_pointer_that_changed_under_its_path_is_not_a_known_one(held: Manifest) -> None:
    before, _, _ = rolled(held, 2)
    known = before.text(NONE_KNOWN).texts()
    changed = [replace(each, num_bytes=each.num_bytes + 1) for each in (before.snapshots[0], before.fragments[0])]
    after = replace(before, snapshots=(changed[0],), fragments=(changed[1], *before.fragments[1:])).counted()

    assert Manifest.from_bytes(after.text(known).data()) == after != before
    fields = strict_json.load(after.text(known).unknown(known), what="a", bytes_max=2**20)
    assert Manifest.from_fields(fields, known=known) == after


def test_path_in_place_of_a_pointer_is_refused_unless_it_is_known(held: Manifest) -> None:
    known = held.text(NONE_KNOWN).texts()
    brief = held.text(known).unknown(known)

    with pytest.raises(CorruptError, match=r"fragments\[0\]: expected a JSON object, found str"):
        Manifest.from_fields(strict_json.load(brief, what="a", bytes_max=2**20))
    elsewhere = brief.replace(b'"snapshots":[]', b'"snapshots":["%b"]' % held.fragments[0].path.encode())
    with pytest.raises(CorruptError, match=r"snapshots\[0\]: expected a JSON object, found str"):
        Manifest.from_fields(strict_json.load(elsewhere, what="a", bytes_max=2**20), known=known)


@pytest.mark.parametrize("field", ["first_seq_no", "seq_no", "num_bytes", "num_records"])
def test_flag_for_a_number_in_a_pointer_is_refused(held: Manifest, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{field}: expected an integer, found bool"):
        replace(held.fragments[0], **{field: True})


def test_every_truncation_of_manifest_snapshot_and_cursor_is_an_error(held: Manifest) -> None:
    manifest, snapshot, pointer = rolled(held, 2)
    cursor = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID).to_bytes()
    stored = manifest.to_bytes()

    for length in range(0, len(stored), 7):
        with pytest.raises(CorruptError):
            Manifest.from_bytes(stored[:length])
    for length in range(0, len(snapshot.to_bytes()), 7):
        with pytest.raises(CorruptError):
            Snapshot.from_bytes(snapshot.to_bytes()[:length], pointer)
    for length in range(len(cursor)):
        with pytest.raises(CorruptError):
            Cursor.from_bytes(cursor[:length], what="cursor")


def test_every_flipped_bit_of_a_cursor_is_an_error() -> None:
    stored = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID).to_bytes()

    for at in range(len(stored) * 8):
        flipped = bytearray(stored)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(CorruptError):
            Cursor.from_bytes(bytes(flipped), what="cursor")


def golden(name: str, stored: bytes) -> None:
    path = GOLDEN / name
    assert path.read_bytes() == stored, f"the format changed: {path} holds what earlier versions wrote"


def test_formats_are_what_earlier_versions_wrote(held: Manifest) -> None:
    manifest, snapshot, pointer = rolled(held, 2)
    sealed = manifest.apply_seal(Seal(reason="r", sealed_by="s", timestamp_us=9, successor="t"))
    cursor = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID)
    deep = Snapshot((pointer,), 3, LOG_ID)

    golden("manifest.json", sealed.to_bytes())
    golden("snapshot.json", snapshot.to_bytes())
    golden("snapshot_of_snapshots.json", deep.to_bytes())
    golden("cursor.json", cursor.to_bytes())
    assert Manifest.from_bytes((GOLDEN / "manifest.json").read_bytes()) == sealed
    golden("manifest_of_a_view.json", replace(held, view=View.FEED).to_bytes())
    assert Manifest.from_bytes((GOLDEN / "manifest_of_a_view.json").read_bytes()) == replace(held, view=View.FEED)
    golden("manifest_of_a_keyed_log.json", replace(held, keyed=True).to_bytes())
    assert Manifest.from_bytes((GOLDEN / "manifest_of_a_keyed_log.json").read_bytes()) == replace(held, keyed=True)
    staged = of_a_staged_append(held)
    golden("manifest_of_a_staged_append.json", staged.to_bytes())
    assert Manifest.from_bytes((GOLDEN / "manifest_of_a_staged_append.json").read_bytes()) == staged


def of_a_staged_append(held: Manifest) -> Manifest:
    """Let the last three of four fragments be of one append."""
    first, second, *others = held.fragments
    return held.holding([first, second, *(replace(each, continues=True) for each in others)])


@pytest.mark.parametrize("value", [False, 1, "true", None])
def test_flag_is_true_or_left_out(held: Manifest, value: object) -> None:
    document = json.loads(held.to_bytes())
    del document["checksum"]

    with pytest.raises(CorruptError, match="keyed: expected true, or no such field"):
        Manifest.from_bytes(strict_json.dump_checksummed({**document, "keyed": value}))
    document["fragments"][1]["continues"] = value
    with pytest.raises(CorruptError, match="continues: expected true, or no such field"):
        Manifest.from_bytes(strict_json.dump_checksummed(document))


@pytest.mark.parametrize(
    ("version", "advice"),
    [(0, "an older wal3 wrote it"), (1, "an older wal3 wrote it"), (3, "a newer wal3"), (99, "a newer wal3")],
)
def test_unknown_format_version_is_refused_with_advice(held: Manifest, version: int, advice: str) -> None:

    document = json.loads(held.to_bytes())
    del document["checksum"]
    document["format_version"] = version

    with pytest.raises(CorruptError, match=f"format_version 2, found {version}: {advice}"):
        Manifest.from_bytes(strict_json.dump_checksummed(document))
