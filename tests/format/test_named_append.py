"""What a writer's cursor says of its last appends: the format, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format.cursor import Cursor
from wal3_core.format.named_append import NAMED_APPENDS_MAX, NamedAppend, begun
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import Fields

GOLDEN = Path(__file__).parent.parent / "golden"
DONE = NamedAppend(naming="0123456789ab", start=3, limit=6)
BEGUN = NamedAppend(naming="ba9876543210", series="q", number=4)


def test_format_is_what_earlier_versions_wrote() -> None:
    stored = (GOLDEN / "cursor_of_a_writer.json").read_bytes()
    found = Cursor.from_bytes(stored, what="cursor")

    assert found.appends == (DONE, BEGUN)
    assert found.to_bytes() == stored
    plain = Cursor(log_id=LOG_ID, position=LogPosition(9, 5), epoch_us=7, generation=1, writer="w")
    assert b"appends" not in plain.to_bytes()


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"naming": "0123"}, "expected 12 hex digits as naming, found '0123'"),
        ({"start": 6}, "expected a start below its limit, found 6 and 6"),
        ({"start": 0}, "field start: expected no such field, or another value, found its default"),
        ({"series": "", "number": 1}, "field series: expected no such field, or another value, found its default"),
        ({"series": "q" * 201, "number": 1}, "expected a series of 1 to 200 characters"),
        ({"other": 1}, "expected no further fields, found other"),
    ],
)
def test_append_that_cannot_be_one_is_refused(changed: dict[str, str | int], complaint: str) -> None:
    with pytest.raises(CorruptError, match=complaint):
        NamedAppend.from_json(Fields({**DONE.to_json(), **changed}, "cursor.appends[0]"))


def test_cursor_does_not_name_an_append_twice() -> None:
    stored = json.loads((GOLDEN / "cursor_of_a_writer.json").read_bytes())
    stored["appends"] = [DONE.to_json(), DONE.to_json()]
    del stored["checksum"]
    with pytest.raises(CorruptError, match="expected appends of different naming, or no such field"):
        Cursor.from_fields(Fields(stored, "cursor"))


def test_cursor_names_the_newest_of_each_series_and_the_newest_of_all() -> None:
    many = [NamedAppend(naming=f"{number:012x}") for number in range(NAMED_APPENDS_MAX)]

    assert begun(many, BEGUN) == (*many[1:], BEGUN)
    assert begun((BEGUN, DONE), NamedAppend(naming="f" * 12, series="q", number=5))[0] == DONE
    assert begun((DONE, BEGUN), DONE) == (BEGUN, DONE)
