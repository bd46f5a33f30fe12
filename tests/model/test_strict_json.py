"""Documents from outside are read strictly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.errors import CorruptError
from wal3_core.model import strict_json

WHAT = "document"


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
        '{"a":-1}',
        '{"a":18446744073709551616}',
        '{"a":' + "9" * 5000 + "}",
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":2}}',
        '{"a":1} x',
        '{"a":"\udcff"}',
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_what_is_not_a_strict_object_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match=WHAT):
        strict_json.load(text.encode("utf-8", "surrogateescape"), what=WHAT, bytes_max=2**20)


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
    ],
)
def test_field_of_another_type_is_named(document: bytes, take: object) -> None:
    fields = strict_json.load(document, what=WHAT, bytes_max=100)

    with pytest.raises(CorruptError, match="document.* a"):
        take(fields)  # type: ignore[operator]


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
