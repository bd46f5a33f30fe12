"""Documents from outside are read strictly."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.errors import CorruptError
from wal3_core.format import strict_json

WHAT = "document"
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "1",
        '{"a":NaN}',
        '{"a":Infinity}',
        '{"a":1.5}',
        '{"a":1e3}',
        '{"a":' + "9" * 5000 + "}",
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":2}}',
        '{"a":1} x',
        '{"a":"\udcff"}',
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_text_that_is_no_strict_object_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        strict_json.load(text.encode("utf-8", "surrogateescape"), what=WHAT, bytes_max=2**20)


def test_long_number_is_refused_before_it_is_converted_where_python_would_convert_it() -> None:
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(CorruptError, match="is not within u64"):
            strict_json.load(b'{"a":' + b"9" * 5000 + b"}", what=WHAT, bytes_max=2**20)
    finally:
        sys.set_int_max_str_digits(allowed)


def test_fields_are_taken_by_type_and_none_may_be_left() -> None:
    fields = strict_json.load(b'{"n":1,"s":"x","o":{"k":2},"l":[{"v":3}],"rest":0}', what=WHAT, bytes_max=100)

    assert fields.integer("n") == 1
    assert fields.string("s") == "x"
    assert fields.object("o").integer("k") == 2
    assert [item.integer("v") for item in fields.objects("l", count_max=1)] == [3]
    with pytest.raises(CorruptError, match="no further fields, found rest"):
        fields.finish()


@pytest.mark.parametrize(
    ("document", "take"),
    [
        (b'{"a":"1"}', lambda fields: fields.integer("a")),
        (b'{"a":true}', lambda fields: fields.integer("a")),
        (b'{"a":1}', lambda fields: fields.string("a")),
        (b'{"a":null}', lambda fields: fields.string("a")),
        (b'{"a":[]}', lambda fields: fields.object("a")),
        (b'{"a":{}}', lambda fields: fields.objects("a", count_max=1)),
        (b'{"a":[{},{}]}', lambda fields: fields.objects("a", count_max=1)),
        (b'{"a":[1]}', lambda fields: fields.objects("a", count_max=1)),
        (b"{}", lambda fields: fields.integer("a")),
        (b'{"a":-1}', lambda fields: fields.integer("a")),
        (b'{"a":18446744073709551616}', lambda fields: fields.integer("a")),
        (b'{"a":-1}', lambda fields: fields.integers(count_max=1)),
    ],
)
def test_field_of_another_type_is_named(document: bytes, take: object) -> None:
    fields = strict_json.load(document, what=WHAT, bytes_max=100)

    with pytest.raises(CorruptError, match="document.* a"):
        take(fields)


def test_document_over_its_limit_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(CorruptError, match="at most 10 bytes, found 13"):
        strict_json.load(b'{"a":"12345"}', what=WHAT, bytes_max=10)


@given(st.dictionaries(st.text(max_size=5), st.integers(0, 2**64 - 1) | st.text(max_size=20), max_size=5))
def test_checksummed_document_reads_back(document: dict[str, int | str]) -> None:
    document.pop("checksum", None)
    stored = strict_json.dump_checksummed({"v": 1, **document})

    fields = strict_json.load_checksummed(stored, what=WHAT, bytes_max=10_000)

    for key, value in {"v": 1, **document}.items():
        assert (fields.integer(key) if isinstance(value, int) else fields.string(key)) == value
    fields.finish()


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_and_nothing_worse(data: bytes) -> None:
    with pytest.raises(CorruptError):
        strict_json.load_checksummed(data, what=WHAT, bytes_max=1000)


COUNT = 50_000
# Items that take the most memory for their bytes; ``%d`` makes each item different.
EXPANDING = {
    "empty objects": b"{}",
    "empty lists": b"[]",
    "nested lists": b"[[[[[[[[]]]]]]]]",
    "nested objects": b'{"a":{"a":{"a":{}}}}',
    "objects of one key": b'{"":0}',
    "objects of other keys": b'{"%d":0}',
    "integers": b"1000",
    "large integers": b"18446744073709551615",
    "short strings": b'"ab"',
    "strings of one wide character": '"\U0001f600"'.encode(),
    "strings of one escaped character": b'"\\u0101"',
    "long strings with one wide character": b'"' + b"a" * 500 + '\U0001f600"'.encode(),
    "long strings with one escaped character": b'"' + b"a" * 500 + b'\\ud83d\\ude00"',
}


@pytest.mark.slow
@pytest.mark.parametrize("num_text", [0, 60], ids=lambda num_text: f"and {num_text} bytes of text")
@pytest.mark.parametrize("name", EXPANDING)
def test_memory_stays_below_twenty_times_the_bytes(name: str, num_text: int) -> None:
    item = EXPANDING[name] + (b',"' + b"t" * num_text + b'"' if num_text else b"")
    count = COUNT if len(item) < 100 else COUNT // 10
    data = b'{"x":[' + b",".join(item.replace(b"%d", b"%d" % number) for number in range(count)) + b"]}"
    stored = strict_json.with_checksum(data[:-1])

    tracemalloc.start()
    try:
        with contextlib.suppress(CorruptError):
            strict_json.load_checksummed(stored, what=WHAT, bytes_max=2**30)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    print(f"{name}: {len(stored)} bytes took {peak_bytes / len(stored):.1f} times as many")
    assert peak_bytes <= 20 * len(stored) + 2**20


def test_document_of_many_keys_is_refused_before_it_takes_memory() -> None:
    data = b"{" + b",".join(b'"%x":0' % number for number in range(COUNT)) + b"}"

    with pytest.raises(CorruptError, match="document: expected values that take at most"):
        strict_json.load(data, what=WHAT, bytes_max=2**30)


def test_real_documents_of_any_size_are_far_from_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden documents have the fewest digits, and so the shortest pointers."""
    monkeypatch.setattr(strict_json, "_EXPANSION_FLOOR", 0)
    monkeypatch.setattr(strict_json, "_EXPANSION_MAX", 11)
    for path in sorted(GOLDEN.glob("manifest.json")) + sorted(GOLDEN.glob("snapshot*.json")):
        strict_json.load(path.read_bytes(), what=path.name, bytes_max=2**20)
