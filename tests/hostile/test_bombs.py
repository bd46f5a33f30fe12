"""A small file that expands to hundreds of megabytes is refused before it uses them.

The bound, as ``decode`` states it: memory grows by at most three times the limit and 64 MiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.bombs import BOMBS, SOUND
from tests.hostile.specimens import MIB, SEQ_NO, fragment
from wal3_core import LogReader, LogWriter, MemoryStore, ReaderOptions, WriterOptions
from wal3_core.errors import CorruptError
from wal3_core.format import parquet

if TYPE_CHECKING:
    from tests.hostile.bombs import Bomb

LIMIT_BYTES = 16 * MIB
SOUND_LIMIT_BYTES = 128 * MIB
CONSTANT_BYTES = 64 * MIB
# In one worker: the bombs are decoded once for all tests.
pytestmark = pytest.mark.xdist_group("bombs")


Outcome = tuple[str | int, int]


def probe(folder: Path, files: Mapping[str, Callable[[], Bomb]], limit_bytes: int) -> dict[str, Outcome]:
    """Decode files in a process of its own; return each error or number of records, and how far memory rose."""
    lines = []
    for number, make in enumerate(files.values()):
        data, pointer = make()
        path = folder / f"{number}.parquet"
        path.write_bytes(data)
        lines.append(json.dumps({"path": str(path), "pointer": pointer.to_json(), "limit_bytes": limit_bytes}))
    (folder / "files").write_text("\n".join(lines))
    run = subprocess.run(
        [sys.executable, "-m", "tests.hostile.probe", str(folder / "files")],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(reports) == len(lines), f"exit {run.returncode} over {list(files)[len(reports)]}: {run.stderr}"
    return {name: (each["outcome"], each["grown_bytes"]) for name, each in zip(files, reports, strict=True)}


@pytest.fixture(scope="module")
def exploded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcome of every bomb."""
    return probe(tmp_path_factory.mktemp("bombs"), BOMBS, LIMIT_BYTES)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_within_the_memory_bound(name: str, exploded: dict[str, Outcome]) -> None:
    outcome, grown_bytes = exploded[name]

    assert str(outcome).startswith(f"fragment {SEQ_NO}, offsets ")
    # Not even the limit: only the footer, the headers and the dictionaries are read.
    assert grown_bytes <= LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_large_sound_fragment_is_read_within_the_memory_bound(name: str, tmp_path: Path) -> None:
    outcome, grown_bytes = probe(tmp_path, {name: SOUND[name]}, SOUND_LIMIT_BYTES)[name]

    assert isinstance(outcome, int), outcome
    # It is large: a bound that is never approached proves nothing.
    assert SOUND_LIMIT_BYTES // 2 < grown_bytes <= 3 * SOUND_LIMIT_BYTES + CONSTANT_BYTES


def test_value_that_many_records_share_is_counted_for_each_of_them() -> None:
    """A dictionary holds it once; records would hold it once each."""
    data, pointer = BOMBS["value_in_a_dictionary"]()

    with pytest.raises(CorruptError, match="expand to at most 1048576000 bytes, found 10497"):
        parquet.decode(data, pointer, expanded_bytes_max=1000 * MIB)


@pytest.mark.slow
def test_the_largest_fragment_a_writer_makes_is_read_with_a_reader_s_defaults(memory_store: MemoryStore) -> None:
    options = WriterOptions()
    short = [(b"%d" % index, None) for index in range(options.batch_records_max)]
    data, pointer = fragment(short)

    fragments = parquet.decode(data, pointer, expanded_bytes_max=ReaderOptions().fragment_expanded_bytes_max).table
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(bytes(options.record_bytes_max))

    assert len(fragments) == options.batch_records_max
    assert [len(record.body or b"") for record in LogReader.open(memory_store, "a").records()] == [
        options.record_bytes_max
    ]


def test_records_are_counted_before_they_are_created() -> None:
    data, pointer = fragment([(None, b"")] * 1000)

    assert len(parquet.decode(data, pointer, expanded_bytes_max=100_000).table) == 1000
    with pytest.raises(CorruptError, match="expand to at most 64000 bytes"):
        parquet.decode(data, pointer, expanded_bytes_max=64_000)
