"""Whatever is done to a fragment's bytes, the result is the same records or an error; the process survives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import every, some
from tests.hostile.forge import I64, Forgery
from tests.hostile.specimens import (
    KEYED,
    LONG,
    PLAIN,
    SEQ_NO,
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

# The long version; ``make fuzz`` sets it.
CASES = int(os.environ.get("WAL3_FUZZ_CASES", some(1500)))
FIRST = int(os.environ.get("WAL3_FUZZ_FIRST", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_attacked_fragments_decode_to_the_same_records_or_are_refused(part: int, tmp_path: Path) -> None:
    """INV-9, in a process of its own: a crash fails the test, which reports the case."""
    progress, first = tmp_path / "case", FIRST + part * CASES
    optimized = ["-O"] if sys.flags.optimize else []

    run = subprocess.run(
        [
            sys.executable,
            *optimized,
            "-m",
            "tests.hostile.fuzz",
            f"--first={first}",
            f"--cases={CASES}",
            f"--progress={progress}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
    )

    last = int(progress.read_text() or first)
    assert run.returncode == 0, f"exit {run.returncode} at case {last}:\n{run.stdout}{run.stderr}"
    assert last == first + CASES - 1
    for attack in ("flipped", "forged", "repacked", "scrambled", "spliced"):
        assert f"{attack} refused" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("messages", [KEYED[:12], PLAIN[:12]], ids=["keyed", "plain"])
def test_every_flipped_bit_of_a_fragment_is_an_error_or_changes_nothing(messages: list[tuple[bytes, bytes]]) -> None:
    """INV-9."""
    stored, pointer = fragment(messages)
    good = decoded(stored, pointer)
    assert good is not None

    for at in range(0, len(stored) * 8, every(3)):
        flipped = bytearray(stored)
        flipped[at // 8] ^= 1 << at % 8
        assert decoded(bytes(flipped), pointer) in (None, good), f"bit {at}"


@pytest.mark.slow
def test_every_flipped_bit_of_an_arranged_fragment_is_an_error_or_changes_nothing() -> None:
    """INV-9; in the whole file, and in each of its row groups."""
    stored, pointer = arranged(LONG[:20])
    good = decoded(*fragment(LONG[:20]))
    assert good is not None
    found = parquet.read_arrangement(memoryview(stored), pointer)
    assert found is not None
    assert len(found.groups) > 1

    # Pages are compressed: a bit of each byte.
    for at in range(0, len(stored), every(3)):
        flipped = bytearray(stored)
        flipped[at] ^= 1 << at % 8
        assert decoded(bytes(flipped), pointer) in (None, good), f"byte {at}"
        assert decoded_in_parts(bytes(flipped), pointer) in (None, good), f"byte {at}"


def test_every_truncation_and_every_lengthening_of_a_fragment_is_an_error() -> None:
    stored, pointer = fragment(KEYED)

    for length in range(len(stored)):
        assert decoded(stored[:length], pointer) is None, f"{length} bytes"
    for more in (b"\0", b"PAR1", stored[-8:], b"x" * 1000):
        assert decoded(stored + more, pointer) is None


def test_another_fragment_under_the_right_name_is_an_error() -> None:
    """The same number of records, positions and sizes: only the content differs."""
    stored, pointer = fragment(PLAIN)
    others = [
        fragment([(None, bytes(reversed(body or b""))) for _, body in PLAIN])[0],
        fragment(list(reversed(PLAIN)))[0],
        fragment([(b"", body) for _, body in PLAIN])[0],
        fragment([(body, None) for _, body in PLAIN])[0],
        fragment(PLAIN[:-1])[0],
    ]

    assert decoded(stored, pointer) is not None
    for other in others:
        assert other != stored
        assert decoded(other, pointer) is None


def test_column_of_one_fragment_in_another_is_an_error() -> None:
    """Pages with valid checksums in the wrong place."""
    stored, pointer = fragment(PLAIN)
    other = Forgery.of(fragment([(None, b"x" + (body or b"")) for _, body in PLAIN])[0])
    for column in range(3):
        forgery = Forgery.of(stored)
        forgery.groups[0][column].pages = other.groups[0][column].pages

        found = decoded(forgery.build(), pointer)

        assert (found is None) == (column == 2)


@pytest.mark.parametrize(
    ("holder", "field"),
    [("footer", 3), ("group", 3), ("chunk", 5), ("chunk", 7), ("chunk", 9)],
    ids=["records", "group's records", "values", "stored size", "offset"],
)
@pytest.mark.parametrize("false", [-(2**63), -1, 0, 1, 61, 2**31, 2**40, 2**63 - 1])
def test_footer_with_a_false_number_is_an_error(holder: str, field: int, false: int) -> None:
    stored, pointer = fragment(KEYED)
    forgery = Forgery.of(stored)
    target = {
        "footer": forgery.footer,
        "group": forgery.group(),
        "chunk": forgery.groups[0][3].metadata,
    }[holder]
    target.set(field, false, I64)

    assert decoded(forgery.build(correct=False), pointer) is None


def test_footer_with_a_false_number_that_is_never_used_changes_nothing() -> None:
    """The expanded size: other writers may count it differently."""
    stored, pointer = fragment(KEYED)
    good = decoded(stored, pointer)
    for false in (0, 1, 2**40):
        forgery = Forgery.of(stored)
        forgery.group().set(2, false, I64)

        assert decoded(forgery.build(), pointer) == good


def test_footer_that_would_crash_the_decoder_is_an_error() -> None:
    """The level histograms of a column that has another number of levels."""
    forgery = Forgery.of(written(table_of(KEYED), compression="none", use_dictionary=False))
    sizes = next(chunk.metadata for chunk in forgery.groups[0] if chunk.metadata.has(16)).inner(16)
    histogram = next(each for each in sizes.fields if each[0] == 3)[2]
    histogram.values.append(1)
    data = forgery.build()

    assert decoded(data, pointer_to(data, len(KEYED))) is None


@pytest.mark.parametrize("ending", [b"PARE", b"par1", b"\0\0\0\0"])
def test_footer_of_another_kind_is_an_error(ending: bytes) -> None:
    stored, pointer = fragment(KEYED)

    assert decoded(stored[:-4] + ending, pointer) is None


def test_error_names_the_fragment_and_keeps_the_decoder_s_message() -> None:
    stored, pointer = fragment(PLAIN)
    forgery = Forgery.of(stored)
    forgery.groups[0][2].pages[0].payload = bytes(reversed(forgery.groups[0][2].pages[0].payload))

    with pytest.raises(CorruptError, match=f"fragment {SEQ_NO}, .*CRC checksum verification failed"):
        parquet.decode(forgery.build(), pointer, expanded_bytes_max=2**20)
