"""Repairing a log from a copy: its own objects again, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.spec.copying import FEW, NOW, data, fill, grow, records
from tests.stores import CountingStore, damage, life_store
from tests.world import ClockStore
from wal3_core import (
    CorruptError,
    CursorStore,
    FragmentPointer,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    Message,
    Origin,
    ReaderOptions,
    RepairReport,
    SnapshotPointer,
    bootstrap,
    copy,
    open_store,
    repair_log,
    scrub,
    update_copy,
)
from wal3_core import collect as collect_all
from wal3_core.format import parquet
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.maintain.repair import _EXTRA_BYTES_MAX
from wal3_core.log.write import appends
from wal3_core.store.object_store import Done, ObjectStore

A, B = "a", "b"


def repair(store: ObjectStore, log: str = A, source: str = B, *, dry_run: bool = False) -> RepairReport:
    return repair_log(LogAt(store, log), LogAt(store, source), dry_run=dry_run)


def pointers(store: ObjectStore, log: str = A) -> list[FragmentPointer]:
    return LogReader.open(store, log).scan()


def overwrite(store: ObjectStore, path: str, change: Callable[[bytes], bytes | None], log: str = A) -> None:
    """Let an object be other bytes, or none."""
    inside = life_store(store, log)
    before = inside.read(path)
    assert before is not None
    inside.delete(path)
    after = change(before)
    assert after is None or isinstance(inside.create(path, after), Done)


def lose(_data: bytes) -> None:
    return None


def flip(data: bytes) -> bytes:
    # Every format depends on the last byte; elsewhere are bits that do not matter.
    return data[:-1] + bytes([data[-1] ^ 1])


CHANGES: dict[str, Callable[[bytes], bytes | None]] = {
    "changed": flip,
    "truncated": lambda data: data[:-7],
    "longer": lambda data: data + b"more",
    "zero bytes": lambda _data: b"",
    "missing": lose,
}


def by_copy(store: ObjectStore) -> None:
    copy(LogAt(store, A), LogAt(store, B))


def by_update(store: ObjectStore) -> None:
    """Copy the log while it is empty, and update that: none of its fragments has the log's path."""
    LogWriter.create(store, "empty")
    copy(LogAt(store, "empty"), LogAt(store, B))
    update_copy(LogAt(store, A), LogAt(store, B))


def by_other_boundaries(store: ObjectStore) -> None:
    """Write the records as fragments of other sizes."""
    origin = Origin(first_offset=1)
    bootstrap(store, B, records(store, A), origin)
    assert len(pointers(store, B)) < len(pointers(store, A))


def filled(store: ObjectStore) -> None:
    fill(store, A, 5)
    with LogWriter.open(store, A, options=FEW) as writer:
        writer.append_many([Message(None, key=b"deleted"), Message(b"", key=b""), Message(b"plain")])
        writer.append_many([b"no key"] * 30)
        writer.append(b"last")


def snapshots(store: ObjectStore, depth: int) -> list[SnapshotPointer]:
    reader = LogReader.open(store, A)
    found = list(reader.manifest().snapshots)
    found += [each for above in found if above.depth > 1 for each in reader.load_snapshot(above).pointers]
    return [each for each in found if each.depth == depth]


@pytest.mark.parametrize("made", [by_copy, by_update, by_other_boundaries])
@pytest.mark.parametrize("change", CHANGES)
def test_damaged_fragments_become_what_they_were(
    store: ObjectStore, made: Callable[[ObjectStore], None], change: str
) -> None:
    filled(store)
    made(store)
    before, held = data(store, A), records(store, A)
    bad = [pointer.path for pointer in pointers(store)[1::2]]
    for path in bad:
        overwrite(store, path, CHANGES[change])
    assert not scrub(store, A).sound

    report = repair(store)

    assert (report.complete, list(report.repaired), report.problems) == (True, bad, ())
    assert (report.num_fragments, report.num_records) == (8, len(held))
    assert data(store, A) == before
    assert records(store, A) == held
    assert scrub(store, A).balanced


@pytest.mark.parametrize("written", parquet.EARLIER_KEY_METADATA)
def test_fragments_of_earlier_versions_become_what_they_were(
    store: ObjectStore, written: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        encode = parquet.encode
        patch.setattr(appends, "encode", lambda source: encode(replace(source, key_metadata=written)))
        filled(store)
    by_other_boundaries(store)
    before = data(store, A)
    bad = [pointer.path for pointer in pointers(store)]
    for path in bad:
        overwrite(store, path, lose)

    assert list(repair(store).repaired) == bad

    assert data(store, A) == before


def test_file_of_the_copy_that_was_put_in_place_is_replaced(store: ObjectStore) -> None:
    """Symptom: the file of an updated copy names another writer, and does not repair the log."""
    filled(store)
    by_update(store)
    before = data(store, A)
    mine, other = pointers(store)[3], pointers(store, B)[3]
    file = life_store(store, B).read(other.path)
    overwrite(store, mine.path, lambda _: file)
    assert "this is the file of another copy" in scrub(store, A).problems[0].message

    assert repair(store).repaired == (mine.path,)

    assert data(store, A) == before


def test_sound_log_is_read_and_not_written(store: ObjectStore) -> None:
    filled(store)
    by_copy(store)
    counting = CountingStore(store)
    reported: list[tuple[int, int]] = []

    report = repair_log(
        LogAt(counting, A), LogAt(counting, B), progress=lambda done, total: reported.append((done, total))
    )

    assert (report.repaired, report.problems, report.num_fragments) == ((), (), 8)
    assert not +counting.written
    assert reported[-1] == (39, 39)


def test_fragment_beyond_a_lower_limit_of_the_reader_is_no_bad_one(store: ObjectStore) -> None:
    """It was replaced by itself again and again, for two minutes."""
    filled(store)
    by_copy(store)
    counting = CountingStore(store)

    report = repair_log(LogAt(counting, A, ReaderOptions(fragment_expanded_bytes_max=1)), LogAt(counting, B))

    assert (report.repaired, report.problems, report.num_fragments) == ((), (), 8)
    assert not +counting.written


def test_dry_run_names_what_would_be_repaired_and_writes_nothing(store: ObjectStore) -> None:
    held = grow(store, A)
    by_update(store)
    (above, *_), (below, *_) = snapshots(store, 2), snapshots(store, 1)
    bad = [above.path, below.path, pointers(store)[0].path, pointers(store)[-1].path]
    for path in bad:
        overwrite(store, path, lose if path == below.path else flip)
    before = data(store, A)

    report = repair(store, dry_run=True)

    assert data(store, A) == before
    assert (report.dry_run, report.complete) == (True, True)
    # A snapshot that was not written cannot be part of the one above it.
    assert set(report.repaired) <= set(bad)
    repaired = repair(store)
    assert set(repaired.repaired) == set(bad)
    assert repaired.num_records == held


@pytest.mark.parametrize("made", [by_copy, by_update])
@pytest.mark.parametrize("change", ["changed", "truncated", "zero bytes", "missing"])
@pytest.mark.parametrize("depth", [1, 2])
def test_damaged_snapshot_is_rebuilt_and_what_is_below_it_is_looked_at(
    store: ObjectStore, made: Callable[[ObjectStore], None], change: str, depth: int
) -> None:
    held = grow(store, A)
    made(store)
    before = data(store, A)
    bad = snapshots(store, depth)[0]
    fragment = next(each for each in pointers(store) if each.start.offset >= bad.start.offset)
    overwrite(store, fragment.path, flip)
    overwrite(store, bad.path, CHANGES[change])

    report = repair(store)

    assert (report.repaired, report.problems) == ((bad.path, fragment.path), ())
    assert report.num_records == held
    assert data(store, A) == before


def test_snapshot_written_under_a_later_fence_is_rebuilt(store: ObjectStore) -> None:
    fill(store, A, 1)
    CursorStore(store, A).create("reader", LogPosition(1, 0))
    clock = ClockStore(store)
    for number in (1, 2):
        orphan = fragment_path(FragmentSeqNo(9), f"{number:016x}")
        assert isinstance(life_store(clock, A).create(orphan, b"x"), Done)
        collect_all(clock, A, options=NOW)
        clock.pass_s(1)
    fill(store, A, 20)
    by_copy(store)
    before = data(store, A)
    reader = LogReader.open(store, A)
    bad = max(snapshots(store, 1), key=lambda each: reader.load_snapshot(each).fence)
    fence = reader.load_snapshot(bad).fence
    overwrite(store, bad.path, lose)

    assert repair(store).complete

    assert fence > 0
    assert data(store, A) == before


def test_snapshot_whose_pointers_are_nowhere_is_reported_and_the_rest_repaired(store: ObjectStore) -> None:
    grow(store, A)
    by_other_boundaries(store)
    bad, fragment = snapshots(store, 1)[0], pointers(store)[-1]
    overwrite(store, bad.path, lose)
    overwrite(store, fragment.path, lose)

    report = repair(store)

    assert report.repaired == (fragment.path,)
    (problem,) = report.problems
    assert problem.path == bad.path
    assert "restore the file from an older version of the object, or the whole log from the copy" in problem.message
    offsets = f"(offsets {bad.start.offset} to {bad.limit.offset - 1})"
    assert f"the pointers to the {bad.num_pointers} objects below it {offsets}" in problem.message


@pytest.mark.parametrize("behind", [1, 2])
def test_copy_that_lacks_the_records_repairs_the_others(store: ObjectStore, behind: int) -> None:
    filled(store)
    by_copy(store)
    end = LogReader.open(store, A).manifest().next.position.offset - 1
    fill(store, A, behind)
    first, last = pointers(store)[0], pointers(store)[-1]
    for path in (first.path, last.path):
        overwrite(store, path, flip)

    report = repair(store)

    assert report.repaired == (first.path,)
    (problem,) = report.problems
    assert (problem.path, report.complete) == (last.path, False)
    assert problem.message.endswith(
        f": expected offsets {end + behind} to {end + behind}, found that the copy ends at offset {end}"
    )
    assert [each.path for each in scrub(store, A).problems] == [last.path]


def test_copy_that_begins_later_or_is_damaged_there_repairs_nothing_wrong(store: ObjectStore) -> None:
    filled(store)
    copy(LogAt(store, A), LogAt(store, B), from_offset=3)
    first, third = pointers(store)[0], pointers(store)[2]
    for path in (first.path, third.path):
        overwrite(store, path, flip)
    overwrite(store, pointers(store, B)[0].path, flip, B)
    before = data(store, A)

    report = repair(store)

    assert [problem.path for problem in report.problems] == [first.path, third.path]
    assert data(store, A) == before


@pytest.mark.parametrize("key", [b"k0", None])
def test_copy_of_another_log_changes_nothing_and_is_named(store: ObjectStore, key: bytes | None) -> None:
    fill(store, A, 3)
    with LogWriter.open_or_create(store, B) as writer:
        for number in range(3):
            writer.append(b"%d" % number, key=key)
    bad = pointers(store)[0]
    overwrite(store, bad.path, flip)
    before = data(store, A)

    report = repair(store)

    (problem,) = report.problems
    assert "is no copy of this log: expected records of setsum" in problem.message
    assert data(store, A) == before


def test_file_that_another_version_would_encode_differently_is_not_written(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    by_update(store)
    bad = pointers(store)[2]
    overwrite(store, bad.path, flip)
    before = data(store, A)
    monkeypatch.setattr("wal3_core.format.parquet.encoding.FORMAT_VERSION", "1.0")

    report = repair(store)

    assert "repair with the versions that wrote the log, or restore the whole log" in report.problems[0].message
    assert data(store, A) == before


def test_full_copy_s_own_file_is_used_whatever_this_version_would_write(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)
    by_copy(store)
    before = data(store, A)
    overwrite(store, pointers(store)[2].path, flip)
    monkeypatch.setattr("wal3_core.format.parquet.encoding.FORMAT_VERSION", "1.0")

    assert repair(store).complete

    assert data(store, A) == before


@pytest.mark.slow
def test_huge_object_in_a_fragment_s_place_is_not_loaded_and_named(local_url: str) -> None:
    store = open_store(local_url)
    fill(store, A, 2)
    by_copy(store)
    bad = pointers(store)[0]
    overwrite(store, bad.path, lambda _: bytes(bad.num_bytes + _EXTRA_BYTES_MAX + 1))

    report = repair(store)

    assert "delete this object by hand, then repair the log again" in report.problems[0].message
    life_store(store, A).delete(bad.path)
    assert repair(store).complete


def test_missing_logs_damaged_manifests_and_the_log_itself_are_refused(store: ObjectStore) -> None:
    fill(store, A, 2)

    with pytest.raises(LogNotFoundError):
        repair(store, A, "missing")
    with pytest.raises(LogNotFoundError):
        repair(store, "missing", A)
    with pytest.raises(InvalidRequestError, match="expected a copy of it, found itself"):
        repair(store, A, A)
    by_copy(store)
    damage(store, f"{A}/manifest/MANIFEST.json")
    with pytest.raises(CorruptError):
        repair(store)
