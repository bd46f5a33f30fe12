"""Key compaction as Spark jobs leaves the same bytes as in one process."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.spark.compact_program import OneTokenRuntime
from tests.spec.compacting import LOG, OPTIONS, Change, append, held, keyed_log
from tests.stores import damage, life_store
from tests.world import World
from wal3_core import Cleanup, CursorStore, LogPosition, LogReader, LogWriter, Policy, open_store, scrub
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.engine import LOSSES, Engine, LocalEngine
from wal3_core.compaction.engine import find_losses as find_losses_here
from wal3_core.errors import CorruptError, InvalidRequestError, MissingError
from wal3_core.format import parquet
from wal3_core.format.paths import COMPACTION_FOLDER, FRAGMENT_FOLDER
from wal3_core.runtime import ThreadRuntime
from wal3_core.spark import compact as compact_module
from wal3_core.spark.compact import SparkEngine, find_losses
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal3_core.compaction.reports import KeyCompactionReport

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent


class TokenRuntime(ThreadRuntime):
    """A process whose tokens are known."""

    tokens = 0

    def token(self) -> str:
        self.tokens += 1
        return f"{self.tokens:016x}"


def compact(store: ObjectStore, engine: Engine, **options: int) -> KeyCompactionReport:
    with TokenRuntime() as runtime:
        runtime.tokens = World(store).manifest().compaction.passes * 100
        settings = replace(OPTIONS, **options)
        return KeyCompactor(store, LOG, options=settings, runtime=runtime, engine=engine).compact(force=True)


def fragments(store: ObjectStore) -> dict[str, bytes | None]:
    """Every fragment of the log and list of dropped records, with its bytes; snapshots are named for theirs."""
    life = life_store(store, LOG)
    folders = (FRAGMENT_FOLDER, COMPACTION_FOLDER)
    paths = [meta.path for folder in folders for meta in life.list_objects(folder) if meta.path.endswith(".parquet")]
    return {path: life.read(path) for path in paths}


def twin(url: str) -> ObjectStore:
    """Copy a whole directory; return the store of the copy."""
    copied = Path(open_store(url).url.removeprefix("file://") + "-twin")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(url.removeprefix("file://"), copied)
    return open_store(copied.as_uri())


def compare(spark: SparkSession, url: str) -> KeyCompactionReport:
    """Compact the log by Spark, and a copy of it here; return the report of both."""
    store, other = open_store(url), twin(url)

    found = compact(store, SparkEngine(spark))
    expected = compact(other, LocalEngine())

    assert replace(found, garbage=()) == replace(expected, garbage=())
    assert fragments(store) == fragments(other)
    assert World(store).manifest().pointers == World(other).manifest().pointers
    assert World(store).manifest().setsum == World(other).manifest().setsum
    assert scrub(store, LOG).sound
    return found


def batch(dice: random.Random, keys: int) -> list[Change]:
    """Some records: of few keys or of many, with an empty key, tombstones, empty bodies."""
    pool = [b"", *(b"%d" % number for number in range(keys))]
    bodies = (None, b"", b"x", b"y" * 200)
    return [(dice.choice(pool), dice.choice(bodies)) for _ in range(dice.randrange(1, 30))]


@pytest.mark.parametrize(("seed", "keys"), [(1, 5), (2, 400)])
def test_passes_over_a_growing_log_leave_the_same_objects_as_in_one_process(
    spark: SparkSession, local_url: str, seed: int, keys: int
) -> None:
    dice, store = random.Random(seed), open_store(local_url)
    LogWriter.create(store, LOG)
    append(store, *([*batch(dice, keys), (None, b"no key")] for _ in range(15)))
    keyed_log(store, delete_retention_s=0, compacted_fragment_bytes=65536)
    superseded = expired = 0
    for turn in range(2):
        append(store, *(batch(dice, keys) for _ in range(4 * turn)))

        report = compare(spark, local_url)

        superseded, expired = superseded + report.num_superseded, expired + report.num_expired
    assert superseded > 50
    # Of few keys each has a newer record; of many some have had a tombstone since the first pass.
    assert (expired > 0) == (keys > 50)
    assert not spark.sparkContext._jsc.getPersistentRDDs()


@pytest.mark.parametrize("cleanup", [Cleanup.COLLECT, Cleanup.COMPACT])
def test_passes_that_arrange_by_key_leave_the_same_objects_as_in_one_process(
    spark: SparkSession, local_url: str, cleanup: Cleanup
) -> None:
    dice, store = random.Random(3), open_store(local_url)
    LogWriter.create(store, LOG)
    terms = Policy(cleanup=cleanup, arrange_by_key=True, compacted_fragment_bytes=65536)
    PolicyStore(store, LOG).change(lambda _: terms)
    append(store, *(batch(dice, 40) for _ in range(12)))
    before = held(store)

    report = compare(spark, local_url)

    assert (report.num_superseded > 0) == (cleanup is Cleanup.COMPACT)
    assert cleanup is Cleanup.COMPACT or held(store) == before
    (pointer,) = LogReader.open(store, LOG).scan()
    data = life_store(store, LOG).read(pointer.path)
    assert data is not None
    assert parquet.read_arrangement(memoryview(data), pointer) is not None


def test_pass_that_drops_nothing_merges_and_one_more_finds_nothing_to_do(spark: SparkSession, local_url: str) -> None:
    store = open_store(local_url)
    keyed_log(store)
    append(store, *([(b"%d" % number, b"x")] for number in range(9)))
    before = held(store)

    report = compare(spark, local_url)
    again = compare(spark, local_url)

    assert (report.num_superseded, report.num_written) == (0, 1)
    assert again.num_written == 0
    assert held(store) == before


def test_key_of_nearly_every_record_keeps_its_newest_and_its_rows_are_one_a_fragment(
    spark: SparkSession, local_url: str
) -> None:
    store = open_store(local_url)
    keyed_log(store)
    for number in range(5):
        append(store, [(b"hot", b"")] * 4000 + [(b"cold %d" % number, b"")])

    with SparkEngine(spark).open(KeyCompactor(store, LOG)._stores, OPTIONS) as work:
        rows = work.rows(LogReader.open(store, LOG).scan())
        assert rows.frame.where("NOT repeated").count() == 10
    report = compare(spark, local_url)

    assert report.num_superseded == 5 * 4000 - 1
    assert [key for _, key, _ in held(store)] == [b"cold 0", b"cold 1", b"cold 2", b"cold 3", b"hot", b"cold 4"]


@pytest.mark.parametrize("seed", range(4))
def test_losses_are_those_of_one_process_to_the_row(spark: SparkSession, seed: int) -> None:
    dice = random.Random(seed)
    rows = [
        (offset // 7, offset, dice.choice([b"", b"a", b"a\x00", b"%d" % dice.randrange(60)]), dice.random() < 0.4)
        for offset in range(1, 120)
        if dice.random() < 0.8
    ]
    columns = list(zip(*rows, strict=True))
    names = ["seq_no", "offset", "key", "tombstone"]
    types = [pa.uint64(), pa.uint64(), pa.large_binary(), pa.bool_()]
    table = pa.table([pa.array(column, of) for column, of in zip(columns, types, strict=True)], names=names)
    compared = [
        compact_module._compared(table.filter(pa.compute.equal(table["seq_no"], seq_no)))
        for seq_no in sorted(set(columns[0]))
    ]

    expected = find_losses_here(table, expired_below=70)
    found = find_losses(spark.createDataFrame(pa.concat_tables(compared)), expired_below=70, tasks=3).toArrow()

    assert found.cast(LOSSES).sort_by("offset") == expected
    assert {2, 1} == set(expected["reason"].to_pylist())


def test_dry_run_reports_what_a_pass_in_one_process_would_do_and_writes_nothing(
    spark: SparkSession, local_url: str
) -> None:
    store = open_store(local_url)
    world = World(store)
    keyed_log(store)
    append(store, *([(b"%d" % (number % 5), b"x" * number)] for number in range(12)))
    before = fragments(store), world.manifest()

    found, expected = (
        KeyCompactor(store, LOG, options=OPTIONS, engine=engine).compact(dry_run=True)
        for engine in (SparkEngine(spark), LocalEngine())
    )

    assert found.num_superseded == 7
    assert found == expected
    assert (fragments(store), world.manifest()) == before


def test_cursor_bounds_a_pass_and_a_part_of_the_log_is_compacted(spark: SparkSession, local_url: str) -> None:
    store = open_store(local_url)
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(6)))
    CursorStore(store, LOG).create("reader", LogPosition(4, 0))

    compare(spark, local_url)

    assert [offset for offset, _, _ in held(store)] == [3, 4, 5, 6]


def test_damaged_fragment_is_named_as_in_one_process_and_the_log_stays_as_it_was(
    spark: SparkSession, local_url: str
) -> None:
    store = open_store(local_url)
    world = World(store)
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(4)))
    path = LogReader.open(store, LOG).scan()[1].path
    damage(life_store(store, LOG), path)
    before = world.manifest()

    with pytest.raises(CorruptError, match=path):
        compact(store, SparkEngine(spark))

    assert world.manifest() == before
    assert not spark.sparkContext._jsc.getPersistentRDDs()


@pytest.mark.parametrize("on_spark", [False, True])
def test_fragment_that_is_gone_is_named_by_its_path(spark: SparkSession, local_url: str, *, on_spark: bool) -> None:
    """By the path it is known whether the log still leads to it, or another pass has replaced it meanwhile."""
    store = open_store(local_url)
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(4)))
    path = LogReader.open(store, LOG).scan()[1].path
    life_store(store, LOG).delete(path)

    with pytest.raises(MissingError, match=path) as caught:
        compact(store, SparkEngine(spark) if on_spark else LocalEngine())

    assert caught.value.path == path


def test_limit_on_bytes_a_second_holds_for_all_tasks_together(spark: SparkSession, local_url: str) -> None:
    store = open_store(local_url)
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number * 100)] for number in range(4)))

    with SparkEngine(spark).open(KeyCompactor(store, LOG)._stores, replace(OPTIONS, bytes_per_s_max=10_000)) as work:
        shares = [work._shared(tasks).bytes_per_s_max for tasks in (1, 2, 9)]

    assert shares == [10_000, 5_000, 5_000]
    assert compact(store, SparkEngine(spark), bytes_per_s_max=100_000).num_superseded == 3


def test_store_of_this_process_alone_is_refused(spark: SparkSession) -> None:
    store = open_store("memory:compacted-by-spark")
    keyed_log(store)

    with pytest.raises(InvalidRequestError, match="expected one that Spark's workers can open"):
        KeyCompactor(store, LOG, engine=SparkEngine(spark)).compact()


@pytest.mark.slow
@pytest.mark.repeat
def test_tasks_that_are_killed_and_run_twice_at_once_leave_the_same_objects(local_url: str, tmp_path: Path) -> None:
    dice, store = random.Random(3), open_store(local_url)
    keyed_log(store, compacted_fragment_bytes=65536)
    # Bodies that do not compress: several groups, and so several tasks.
    append(store, *([(b"%d" % dice.randrange(40), dice.randbytes(5000)) for _ in range(10)] for _ in range(20)))
    other, marks = twin(local_url), tmp_path / "marks"
    marks.mkdir()

    command = [sys.executable, "-m", "tests.spark.compact_program", local_url, str(marks)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    with OneTokenRuntime() as runtime:
        expected = KeyCompactor(other, LOG, options=OPTIONS, runtime=runtime).compact(force=True)

    assert outcome.stdout.splitlines()[-1:] == [str(expected.num_superseded)], outcome.stderr[-3000:]
    attempts = Counter(mark.name.partition(".")[0] + mark.suffix for mark in marks.iterdir())
    assert min(attempts[name] for name in ("read.0", "read.1", "merge.0", "merge.1")) > 0
    assert expected.num_written > 1
    assert fragments(store) == fragments(other)
    assert World(store).manifest().pointers == World(other).manifest().pointers
