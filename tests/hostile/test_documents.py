"""A manifest, a cursor and snapshots of both depths: a damaged one is an error that names it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import permutations

import pytest

from tests.hostile.documents import NAMES, content, load, named, sealed, stored
from wal3_core.errors import CorruptError
from wal3_core.format import strict_json

every_document = pytest.mark.parametrize("name", NAMES)


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        yield bytes(flipped)


def truncations(data: bytes) -> Iterator[bytes]:
    for length in range(len(data)):
        yield data[:length]
        yield data[length + 1 :]


def extensions(data: bytes) -> Iterator[bytes]:
    yield from (data + bytes([byte]) for byte in range(256))
    yield from (bytes([byte]) + data for byte in range(256))
    yield from (data + data, data + data[-48:], b"\xef\xbb\xbf" + data, data + b"\n" * 1000)


def changed_bytes(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[:at] + data[at : at + 1] + data[at:]
        yield data[:at] + data[at + 1 :]


def swapped_blocks(data: bytes) -> Iterator[bytes]:
    for size in (1, 3, 16, 64):
        for at in range(len(data) - 2 * size):
            yield data[:at] + data[at + size : at + 2 * size] + data[at : at + size] + data[at + 2 * size :]


@pytest.mark.slow
@every_document
@pytest.mark.parametrize(
    "damage", [flips, truncations, extensions, changed_bytes, swapped_blocks], ids=lambda damage: damage.__name__
)
def test_every_damage_is_an_error_that_names_the_document(name: str, damage: object) -> None:
    """INV-9: each bit, each length, each byte; none is read as another value, nor as the same."""
    data, count = stored(name), 0
    load(name, data)

    for damaged in damage(data):
        if damaged == data:
            continue
        with pytest.raises(CorruptError) as caught:
            load(name, damaged)
            pytest.fail(f"{damaged!r}")
        assert named(name) in str(caught.value)
        count += 1

    assert count >= 250


ONE_KIND = ({"manifest"}, {"cursor"})


@pytest.mark.parametrize(
    ("name", "other"),
    # Both manifests are of one kind, and all cursors.
    [pair for pair in permutations(NAMES, 2) if {name.partition("_")[0] for name in pair} not in ONE_KIND],
)
def test_one_kind_of_document_is_never_read_as_another(name: str, other: str) -> None:
    """Complete and sound, with a valid checksum, in the wrong place."""
    with pytest.raises(CorruptError):
        load(name, sealed(name, strict_json.dump(content(other))), renamed=True)


HOSTILE = {
    "no object": b"[]",
    "nothing": b"{}",
    "BOM": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "byte that is no text": b'{"writer":"\xff"}',
    "surrogate in UTF-8": b'{"writer":"\xed\xa0\x80"}',
    "control byte in a string": b'{"writer":"a\0b"}',
    "NaN": b'{"generation":NaN}',
    "infinity": b'{"generation":-Infinity}',
    "number too large for a float": b'{"generation":1e400}',
    "number with zeros in front": b'{"generation":0001}',
    "number just beyond u64": b'{"generation":18446744073709551616}',
    "endless number": b'{"generation":' + b"9" * 1_000_000 + b"}",
    "endless negative number": b'{"generation":-' + b"9" * 1_000_000 + b"}",
    "endless fraction": b'{"generation":0.' + b"1" * 1_000_000 + b"}",
    "endless exponent": b'{"generation":1E' + b"9" * 1_000_000 + b"}",
    "endless string": b'{"writer":"' + b"x" * 1_000_000 + b'"}',
    "endless escapes": b'{"writer":"' + b"\\u0000" * 200_000 + b'"}',
    "endless key": b'{"' + b"k" * 1_000_000 + b'":1}',
    "a million keys": b"{" + b",".join(b'"%d":0' % index for index in range(100_000)) + b"}",
    "one key a million times": b"{" + b",".join([b'"generation":0'] * 100_000) + b"}",
    "key twice": b'{"generation":1,"generation":2}',
    "key twice, once escaped": b'{"generation":1,"\\u0067eneration":2}',
    "comment": b'{"generation":1 /* one */}',
    "comma too many": b'{"generation":1,}',
    "single quotes": b"{'generation':1}",
    "Python": b'{"generation":__import__("os")}',
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@every_document
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_text_under_a_valid_checksum_is_an_error(name: str, case: str) -> None:
    data = sealed(name, HOSTILE[case])

    with pytest.raises(CorruptError) as caught:
        load(name, data, renamed=True)

    assert len(str(caught.value)) < 1000


@pytest.mark.slow
@every_document
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_nesting_of_any_depth_is_an_error_and_no_overflow(name: str, opening: str, closing: str) -> None:
    """Also where it can just be parsed but hardly be printed."""
    for depth in (1, 500, *range(880, 1000), 2000, 200_000):
        value = opening * depth + ("0" if opening != "[" else "") + closing * depth
        data = sealed(name, b'{"format_version":' + value.encode() + b"}")

        with pytest.raises(CorruptError):
            load(name, data, renamed=True)
            pytest.fail(f"depth {depth}")


@every_document
@pytest.mark.parametrize("item", [b"0", b"[]", b"{}", b'""', b'"x"', b'{"a":[]}'])
def test_memory_for_a_document_is_a_bounded_multiple_of_its_bytes(name: str, item: bytes) -> None:
    data = sealed(name, b'{"format_version":[' + b",".join([item] * 20_000) + b"]}")
    tracemalloc.start()

    with pytest.raises(CorruptError):
        load(name, data, renamed=True)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak_bytes < 64 * len(data) + 2**20
