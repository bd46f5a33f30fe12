"""Records written as JSON lines read back unchanged; other lines are refused."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.cli.shell import input as lines
from wal3_core.cli.shell.input import json_of_record, line_batches, message_of_json
from wal3_core.errors import InvalidRequestError
from wal3_core.format.record import Message, Record

VALUES = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))


@pytest.mark.slow
@given(key=VALUES, body=VALUES)
def test_record_reads_back_from_its_line(key: bytes | None, body: bytes | None) -> None:
    if key is None and body is None:
        return

    line = json_of_record(Record(7, 1_700_000_000_000_000, key, body))

    assert line.count(b"\n") == 1
    assert json.loads(line)["offset"] == 7
    assert message_of_json(line) == Message(body, key)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"nonsense", "expected a JSON object, found b'nonsense'"),
        (b'["body"]', "expected a JSON object like"),
        (b'{"body": "a", "body": "b"}', "a field occurs twice"),
        (b'{"body": "a", "colour": "red"}', "found 'colour'"),
        (b'{"key": "a"}', "expected a body (null for a tombstone)"),
        (b'{"body": null}', "expected a body, a key, or both, found neither"),
        (b'{"body": 1}', "body: expected a string or null, found 1"),
        (b'{"body": "\\ud800"}', "body: expected UTF-8"),
        (b'{"body_b64": "a"}', "body: expected base64"),
        (b'{"body_b64": "\xc3\xa9"}', "body: expected base64"),
        (b'{"body": "a", "body_b64": "YQ=="}', "expected body or body_b64, found both"),
        (b'{"body": "\xff"}', "expected a JSON object"),
        (b"[" * 100_000, "expected a JSON object"),
    ],
)
def test_line_that_is_not_a_record_is_refused(line: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        message_of_json(line)

    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 300


def test_empty_body_is_not_a_tombstone() -> None:
    assert message_of_json(b'{"key": "k", "body": ""}') == Message(b"", b"k")
    assert message_of_json(b'{"key": "k", "body": null}') == Message(None, b"k")


class Trickle(io.BytesIO):
    """A stream that gives a few bytes at a time, and None in between."""

    has_more = False

    def read(self, size: int | None = -1, /) -> bytes | None:  # as a raw stream's
        del size
        self.has_more = not self.has_more
        return super().read(3) if self.has_more else None


@given(
    expected=st.lists(st.binary(max_size=10).map(lambda line: line.replace(b"\n", b"")), max_size=10),
    last_has_newline=st.booleans(),
)
def test_lines_do_not_depend_on_how_the_input_is_split(expected: list[bytes], *, last_has_newline: bool) -> None:
    data = b"".join(line + b"\n" for line in expected)
    if not last_has_newline and expected and expected[-1]:
        data = data[:-1]

    for stream in (io.BytesIO(data), Trickle(data)):
        assert [line for batch in line_batches(stream) for line in batch] == expected


def test_endless_line_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 100)

    with pytest.raises(InvalidRequestError, match="at most 100 bytes"):
        list(line_batches(Trickle(b"short\n" + b"x" * 1000)))
