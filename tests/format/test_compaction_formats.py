"""What passes of key compaction store is read as earlier versions wrote it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from tests.format.key_rollups import Row, pointers, rolled_up, snapshot_of
from tests.stores import LOG_ID
from wal3_core.compaction.engine import DROPPED, DropReason, dropped_from_bytes, key_digest
from wal3_core.format.parquet.key_rollup_file import decode_key_rollup
from wal3_core.format.pass_record import PassRecord, Proof, Replacement
from wal3_core.format.paths import fragment_path
from wal3_core.format.setsum import Setsum
from wal3_core.format.snapshot import sum_setsums

GOLDEN = Path(__file__).parent.parent / "golden"
TOKEN = "c" * 16
KEYS: list[list[Row]] = [
    [(b"ab", False), (b"b", True), (b"ab", True)],
    [(None, False)],
    [(b"a", True), (b"a", False), (b"", False), (b"user-17", True)],
]
SUPERSEDED, EXPIRED = Setsum.of((b"superseded",)), Setsum.of((b"expired",))


def a_pass() -> PassRecord:
    """A pass that made one fragment of the first two of a log's three."""
    first, second, third = pointers([3, 1, 4])
    read = sum_setsums((first, second))
    pointer = replace(
        second,
        path=fragment_path(second.seq_no, TOKEN),
        first_seq_no=first.first_seq_no,
        start=first.start,
        setsum=read - SUPERSEDED - EXPIRED,
        num_bytes=7,
        num_records=2,
    )
    before = read + third.setsum
    proof = Proof(
        before=before,
        after=before - SUPERSEDED - EXPIRED,
        superseded=SUPERSEDED,
        expired=EXPIRED,
        merged=pointer.setsum,
    )
    return PassRecord(
        log_id=LOG_ID,
        number=2,
        token=TOKEN,
        before="b" * 16,
        timestamp_us=1_700_000_000_000_000,
        first=1,
        limit=9,
        clean_limit=5,
        expired_below=4,
        num_superseded=1,
        num_expired=1,
        fence=3,
        policy="0123456789abcdef" * 4,
        proof=proof,
        replacements=(Replacement((first, second), pointer),),
        partial=True,
    )


def test_pass_records_are_what_earlier_versions_wrote() -> None:
    later = a_pass()
    arranging = replace(later, partial=False, arranged=9, keeps_all=True)
    first = replace(later, number=1, before="", partial=False)
    for name, record in (("pass", later), ("first_pass", first), ("arranging_pass", arranging)):
        path = GOLDEN / f"{name}.json"
        assert record.problem() is None
        assert path.read_bytes() == record.to_bytes(), f"the format changed: {path} holds what earlier versions wrote"
        assert PassRecord.from_bytes(path.read_bytes(), what=name) == record


def test_key_rollup_of_an_earlier_version_is_read() -> None:
    """Its bytes are not compared: another version of Arrow writes other ones."""
    rollup, named = rolled_up(KEYS)
    data = (GOLDEN / "key_rollup.parquet").read_bytes()

    assert decode_key_rollup(data, snapshot_of(named), LOG_ID) == rollup


def test_list_of_dropped_records_of_an_earlier_version_is_read() -> None:
    rows = dropped()

    assert dropped_from_bytes((GOLDEN / "dropped.parquet").read_bytes(), "a list").equals(rows)


def dropped() -> pa.Table:
    """A superseded and an expired record."""
    rows = [(key_digest(b"a"), 2**40, DropReason.SUPERSEDED, 3), (key_digest(b""), 7, DropReason.EXPIRED, 2**33)]
    columns = [
        pa.array(column, type=field.type) for column, field in zip(zip(*rows, strict=True), DROPPED, strict=True)
    ]
    return pa.table(columns, schema=DROPPED).sort_by([("key_hash", "ascending"), ("offset", "ascending")])
