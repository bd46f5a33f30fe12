"""Damages fragments in every way it knows, from a seed: each decodes to the same records or is refused.

``python -m tests.hostile.fuzz --first 0 --cases 2000`` stops at the first case that does neither, and
names it. It runs as a process of its own, because a crash of the decoder ends it; ``--progress`` names
a file that holds the current case. A case that takes longer than a minute also ends it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from tests.hostile.forge import I16, I32, I64, Forgery, Items, Page, Struct
from tests.hostile.probe import peak_bytes
from tests.hostile.specimens import (
    KEYED,
    LONG,
    MIB,
    PLAIN,
    Message,
    arranged,
    decoded,
    decoded_in_parts,
    fragment,
    pointer_to,
    refill,
    table_of,
    written,
)
from wal3_core.errors import CorruptError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.record import Record

ADDRESS_SPACE_MAX = 4 * 2**30
CASE_S_MAX = 60
EXPANDED_BYTES_MAX = 16 * MIB
NUMBERS = (0, 1, -1, 2, 3, 59, 60, 61, 2**15, 2**24, 2**31 - 1, -(2**31), 2**32, 2**40, 2**63 - 1, -(2**63))


@dataclass(frozen=True)
class Specimen:
    """A sound file, and what it decodes to."""

    data: bytes
    pointer: FragmentPointer
    records: list[Record]


@cache
def specimens() -> tuple[Specimen, ...]:
    """Files of the library and of other writers, with the same records in each pair."""
    return tuple(
        _specimen(messages, form)
        for messages in (KEYED, PLAIN)
        for form in (
            None,
            {"compression": "none", "use_dictionary": False},
            {"compression": "zstd", "row_group_size": 17, "write_page_checksum": True},
            {"compression": "snappy", "data_page_version": "2.0", "data_page_size": 64},
            {"compression": "none", "data_page_version": "2.0", "store_schema": False},
        )
    ) + tuple(_arranged(messages) for messages in (KEYED, LONG))


def _arranged(messages: Sequence[Message]) -> Specimen:
    data, pointer = arranged(messages)
    records = decoded(data, pointer)
    assert records is not None
    assert records == decoded(*fragment(messages)) == decoded_in_parts(data, pointer)
    return Specimen(data, pointer, records)


def _specimen(messages: Sequence[Message], form: dict[str, object] | None) -> Specimen:
    data, pointer = fragment(messages)
    if form is not None:
        data = written(table_of(messages), **form)
        pointer = pointer_to(data, len(messages), pointer.setsum.hexdigest())
    records = decoded(data, pointer)
    assert records is not None
    return Specimen(data, pointer, records)


def flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out) * 8)
        out[at // 8] ^= 1 << at % 8
    return bytes(out)


def scrambled(data: bytes, rng: random.Random) -> bytes:
    """Blocks removed, repeated, swapped, zeroed, or inserted."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return rng.choice(
        (
            data[:a],
            data[a:],
            data[:a] + data[b:],
            data[:b] + data[a:],
            data[:a] + data[b:c] + data[a:b] + data[c:],
            data[:a] + bytes(b - a) + data[b:],
            data[:a] + rng.randbytes(rng.randrange(1, 40)) + data[a:],
            data + rng.randbytes(rng.randrange(1, 40)),
        )
    )


def spliced(data: bytes, rng: random.Random) -> bytes:
    """Another fragment's bytes from some place on, or all of them."""
    other = rng.choice(specimens()).data
    at = rng.randrange(len(data))
    return rng.choice((other, data[:at] + other[at:], data[:at] + other[rng.randrange(len(other)) :]))


def forged(data: bytes, rng: random.Random) -> bytes:
    """Change a value in the footer or in a page's header; the rest is adjusted or not."""
    forgery = Forgery.of(data)
    headers = [page.header for group in forgery.groups for chunk in group for page in chunk.pages]
    correct = rng.random() < 0.7
    for _ in range(rng.choice((1, 1, 2, 4))):
        _forge(rng.choice(_structs(forgery.footer) if rng.random() < 0.6 else _structs(rng.choice(headers))), rng)
    try:
        return forgery.build(correct=correct)
    except (StopIteration, AssertionError, TypeError, AttributeError):
        # The forged value is one that the build needs.
        return flipped(data, rng)


def _structs(root: Struct) -> list[Struct]:
    found = [root]
    for _, _, value in root.fields:
        if isinstance(value, Struct):
            found += _structs(value)
        elif isinstance(value, Items):
            found += [each for item in value.values if isinstance(item, Struct) for each in _structs(item)]
    return found


def _forge(target: Struct, rng: random.Random) -> None:
    if not target.fields:
        return
    at = rng.randrange(len(target.fields))
    each = target.fields[at]
    match rng.randrange(6):
        case 0:
            del target.fields[at]
        case 1:
            target.fields.insert(at, deepcopy(each))
        case 2:
            each[0] = rng.randrange(1, 20)
        case 3 if isinstance(each[2], int):
            each[1] = rng.choice((I16, I32, I64))
        case _:
            each[2] = _other(each[2], rng)


def _other(value: object, rng: random.Random) -> object:
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((*NUMBERS, value + 1, value - 1, value * 2, rng.getrandbits(31)))
        case bytes():
            return flipped(value, rng) if value and rng.random() < 0.5 else rng.randbytes(rng.randrange(40))
        case Items():
            rng.shuffle(value.values)
            value.values *= rng.choice((0, 1, 1, 2, 40))
            value.claimed = rng.choice((None, None, 0, len(value.values) + 1, 70, 2**24, 2**31 - 1))
    return value


def repacked(data: bytes, rng: random.Random) -> bytes:
    """Damage inside a page, under a valid compression, size and checksum."""
    forgery = Forgery.of(data)
    chunk = rng.choice([chunk for group in forgery.groups for chunk in group])
    page = rng.choice(chunk.pages)
    codec = {1: "snappy", 6: "zstd"}.get(chunk.metadata[4])
    content = _unpacked(page, codec)
    damaged = rng.choice((flipped, scrambled, _counted))(content, rng) if content else rng.randbytes(8)
    packed = page.header.has(8) or codec is None
    payload = damaged if packed else pa.compress(damaged, codec=codec, asbytes=True)
    refill(page, payload, len(damaged))
    if page.header.has(8):
        # Stored uncompressed, or the decoder misreads the levels.
        page.header.inner(8).set(7, value=False, kind=2)
    return forgery.build()


def _unpacked(page: Page, codec: str | None) -> bytes:
    size = page.header[2]
    if codec is None or page.header.has(8) or not isinstance(size, int):
        return page.payload
    return bytes(pa.decompress(page.payload, decompressed_size=size, codec=codec, asbytes=True))


def _counted(content: bytes, rng: random.Random) -> bytes:
    """A false length somewhere inside, plain or as that of a run."""
    at = rng.randrange(max(1, len(content) - 4))
    number = rng.choice((0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1))
    return content[:at] + struct.pack("<I", number) + content[at + 4 :]


ATTACKS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flipped,
    scrambled,
    spliced,
    forged,
    forged,
    repacked,
    repacked,
)


def run_case(number: int) -> str:
    """Attack one specimen; return the outcome. AssertionError when other records came out."""
    rng = random.Random(number)
    specimen, attack = rng.choice(specimens()), rng.choice(ATTACKS)
    data = attack(specimen.data, rng)
    found = decoded(data, specimen.pointer, expanded_bytes_max=EXPANDED_BYTES_MAX)
    if found is not None and found != specimen.records:
        # Not an assert, because it must hold under -O too.
        message = f"{attack.__name__}: other records"
        raise AssertionError(message)
    parts = decoded_in_parts(data, specimen.pointer, expanded_bytes_max=EXPANDED_BYTES_MAX)
    if parts is not None and parts != specimen.records:
        message = f"{attack.__name__}: other records in row groups"
        raise AssertionError(message)
    try:
        # Without verification any records may come out, but no crash.
        trusting = parquet.decode(data, specimen.pointer, expanded_bytes_max=EXPANDED_BYTES_MAX, verify=False)
        zlib.crc32(repr(list(trusting.records())).encode())
    except CorruptError:
        pass
    return f"{attack.__name__} {'refused' if found is None else 'the same'}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--progress", type=Path, default=Path(os.devnull))
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    faulthandler.enable()
    specimens()
    outcomes: Counter[str] = Counter()
    before = peak_bytes()
    with arguments.progress.open("wb", buffering=0) as progress:
        for number in range(arguments.first, arguments.first + arguments.cases):
            progress.seek(0)
            progress.write(b"%20d" % number)
            faulthandler.dump_traceback_later(CASE_S_MAX, exit=True)
            try:
                outcomes[run_case(number)] += 1
            except BaseException:
                print(f"case {number}: python -m tests.hostile.fuzz --first {number} --cases 1")
                raise
    faulthandler.cancel_dump_traceback_later()
    grown_bytes = peak_bytes() - before
    print(f"{arguments.cases} cases: {dict(sorted(outcomes.items()))}, {grown_bytes / MIB:.0f} MiB more")
    if grown_bytes > 3 * EXPANDED_BYTES_MAX + 64 * MIB:
        sys.exit("more memory than decode promises: halve the range to find the case")


if __name__ == "__main__":
    main()
