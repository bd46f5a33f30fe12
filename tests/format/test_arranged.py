"""Fragments that are arranged by key: the same records as of any other, and each key's without the others."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.hostile.specimens import (
    Message,
    arranged,
    decoded,
    decoded_in_parts,
    fragment,
    pointer_to,
    table_of,
    written,
)
from wal3_core.errors import CorruptError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.parquet import Arrangement
from wal3_core.format.parquet.columns import ARRANGED
from wal3_core.format.parquet.key_groups import GROUP_BYTES, GROUPS_MAX, KEY_GROUPS
from wal3_core.views.keyed.reads import KeyMatch

GIB = 2**30
# Keys that begin with one another, and some of which only the first 64 bytes are in the footer.
KEYS = [b"", b"\0", b"a", b"a\0", b"ab", b"b" * 63, b"b" * 64, b"b" * 65, b"b" * 1024, b"\xff", b"\xff" * 70, None]
ROWS = st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"", b"x", b"y" * 30_000, b"z" * 70_000]))


def valid(messages: Sequence[Message]) -> list[Message]:
    """A record without a key has a body."""
    return [(key, b"" if key is None and body is None else body) for key, body in messages]


def arrangement_of(data: bytes, pointer: FragmentPointer) -> Arrangement:
    found = parquet.read_arrangement(memoryview(data), pointer)
    assert found is not None
    return found


@pytest.mark.slow
@settings(max_examples=some(60))
@given(st.lists(ROWS, min_size=1, max_size=30).map(valid))
def test_arranged_records_decode_as_any_others_and_by_key(messages: list[Message]) -> None:
    data, pointer = arranged(messages)
    records = decoded(*fragment(messages))
    assert records is not None

    assert decoded(data, pointer) == records
    if all(key is None for key, _ in messages):
        assert parquet.read_arrangement(memoryview(data), pointer) is None
        return
    keys = parquet.decode_keys(memoryview(data), pointer, expanded_bytes_max=GIB)
    whole = fragment(messages)
    assert keys.equals(parquet.decode_keys(memoryview(whole[0]), whole[1], expanded_bytes_max=GIB))
    found = arrangement_of(data, pointer)
    for wanted in [key for key in KEYS if key is not None] + [b"c", b"b"]:
        for prefix in (False, True):
            match = KeyMatch.of_prefix(wanted) if prefix else KeyMatch.of(wanted)
            numbers = found.span(match.start, match.limit)
            part = []
            if numbers:
                table = parquet.decode_groups(memoryview(data), pointer, found, numbers, expanded_bytes_max=GIB)
                part = list(parquet.records_of(table))
            expected = [
                each
                for each in records
                if each.key is not None and (each.key.startswith(wanted) if prefix else each.key == wanted)
            ]
            assert [each for each in part if each in expected] == expected


def test_rows_of_the_file_lie_by_key_and_offset_in_groups_of_sixty_four_kilobytes() -> None:
    rng = random.Random(3)
    messages: list[Message] = [(b"key %03d" % rng.randrange(50), rng.randbytes(1000)) for _ in range(1000)]
    messages += [(b"key 025", rng.randbytes(1000)) for _ in range(300)]
    data, pointer = arranged(messages)

    file = pq.ParquetFile(pa.BufferReader(data))
    table = file.read()
    assert table.column_names == ARRANGED
    pairs = list(zip(table["key"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert pairs == sorted(pairs)
    found = arrangement_of(data, pointer)
    sizes = [1000 * each.num_records for each in found.groups]
    assert max(sizes) < 2 * GROUP_BYTES
    assert sum(sizes) / len(sizes) > GROUP_BYTES / 2
    # A key that is smaller than a group lies in one, and one of 300 kB in few, which follow one another.
    assert [len(found.span(b"key %03d" % number, b"key %03d\0" % number)) for number in (3, 24, 26)] == [1, 1, 1]
    assert 5 <= len(found.span(b"key 025", b"key 025\0")) <= 7
    assert len(found.span(b"key 0251", b"key 0251\0")) <= 1
    assert found.span(b"key ", b"key!") == found.span(b"", None) == range(len(found.groups))


@pytest.mark.slow
def test_large_fragment_has_no_more_groups_than_its_footer_may_hold() -> None:
    messages: list[Message] = [(b"%05d" % number, b"v" * 4000) for number in range(12_000)]
    data, pointer = arranged(messages)

    found = arrangement_of(data, pointer)

    assert GROUPS_MAX // 2 < len(found.groups) <= GROUPS_MAX
    assert decoded(data, pointer) == decoded(*fragment(messages))


def test_same_records_are_the_same_bytes_and_refused_by_versions_of_one_order() -> None:
    messages: list[Message] = [(b"b", b"1"), (None, b"2"), (b"a", None), (b"b", b"3")]
    data, pointer = arranged(messages)

    assert data == arranged(messages)[0]
    assert pointer.setsum == fragment(messages)[1].setsum
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata.metadata
    assert metadata[b"wal3.format_version"] == b"2"
    assert b"wal3.key_index" not in metadata
    # What earlier versions refuse a file by: they take two orders of columns.
    assert pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names not in (
        ["offset", "timestamp_us", "body"],
        ["offset", "timestamp_us", "key", "body"],
    )


def _described(*rows: str) -> str:
    text = ";".join(rows)
    return f"{text}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _with_groups(text: str | None, order: Sequence[int], messages: Sequence[Message]) -> bytes:
    """A file in the columns' order of an arranged one, with its rows in some order."""
    table = table_of(messages).take(pa.array(order)).select(ARRANGED)
    metadata = {} if text is None else {KEY_GROUPS: text}
    return written(table.replace_schema_metadata(metadata), row_group_size=2)


def test_file_that_contradicts_what_it_says_of_its_groups_is_an_error() -> None:
    messages: list[Message] = [(b"b", b"1"), (b"a", b"2"), (b"b", b"3")]
    _, pointer = fragment(messages)
    whole = pointer.setsum.hexdigest()
    two = table_of(messages).take(pa.array([1, 0]))
    first = parquet.table_setsum(two)
    second = pointer.setsum - first
    a, b = base64.b64encode(b"a").decode(), base64.b64encode(b"b").decode()
    sound = (f"{a},0,2,{first.hexdigest()}", f"{b},1,1,{second.hexdigest()}")
    cases = {
        "sound": (_described(*sound), [1, 0, 2]),
        "no groups": (None, [1, 0, 2]),
        "another checksum": (_described(*sound)[:-1] + "x", [1, 0, 2]),
        "another order of rows": (_described(*sound), [1, 2, 0]),
        "rows in the log's order": (_described(*sound), [0, 1, 2]),
        "another first key": (_described(f"{b},0,2,{first.hexdigest()}", sound[1]), [1, 0, 2]),
        "a key that does not go on": (_described(sound[0], f"{b},0,1,{second.hexdigest()}"), [1, 0, 2]),
        "a first key that is no base64": (_described("?" + sound[0], sound[1]), [1, 0, 2]),
        "other setsums with the same sum": (
            _described(f"{a},0,2,{second.hexdigest()}", f"{b},1,1,{first.hexdigest()}"),
            [1, 0, 2],
        ),
        "one group too few": (_described(f"{a},0,3,{whole}"), [1, 0, 2]),
        "an empty group": (_described(*sound, f"{b},1,0,{'0' * 64}"), [1, 0, 2]),
        "a group of minus one": (_described(sound[0], sound[1].replace(",1,", ",-1,", 1)), [1, 0, 2]),
        "a setsum that is none": (_described(sound[0], f"{b},1,1,{'f' * 64}"), [1, 0, 2]),
        "not three values": (_described(sound[0], b), [1, 0, 2]),
        "groups without end": (_described(*[sound[0]] * 600), [1, 0, 2]),
    }
    outcomes = {}
    for name, (text, order) in cases.items():
        data = _with_groups(text, order, messages)
        pointed = pointer_to(data, 3, whole)
        outcomes[name] = (decoded(data, pointed) is not None, decoded_in_parts(data, pointed) is not None)

    assert outcomes.pop("sound") == (True, True)
    # The group before tells, which a read of this one alone does not see.
    assert outcomes.pop("a key that does not go on") == (False, True)
    assert {name: found for name, found in outcomes.items() if any(found)} == {}


def test_group_of_another_fragment_is_refused_though_its_pages_are_sound() -> None:
    """As if a range of the file were another's: only the setsum of the group tells."""
    messages: list[Message] = [(b"%d" % (at % 3), b"v" * 30_000) for at in range(9)]
    others: list[Message] = [(b"%d" % (at % 3), b"w" * 30_000) for at in range(9)]
    data, pointer = arranged(messages)
    other, _ = arranged(others)
    found = arrangement_of(data, pointer)
    start, limit = found.places[1]
    assert len(data) == len(other)

    mixed = data[:start] + other[start:limit] + data[limit:]

    with pytest.raises(CorruptError, match=r"expected a group with the setsum"):
        parquet.decode_groups(memoryview(mixed), pointer, found, range(1, 2), expanded_bytes_max=GIB)
    assert decoded(mixed, pointer) is None


def test_fragment_that_is_not_arranged_has_no_arrangement() -> None:
    data, pointer = fragment([(b"a", b"1"), (b"b", b"2")])

    assert parquet.read_arrangement(memoryview(data), pointer) is None
