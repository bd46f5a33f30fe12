"""Reads with maintenance between planning and reading, and requests that are refused."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from tests.compacted_logs import compact
from tests.spark.logs import TREE, collect, fill, merge, pointers
from tests.stores import LOG_ID, FaultyStore, life_store
from wal3_core import GarbageCollectedError, InvalidRequestError, LogError, LogPosition, LogWriter
from wal3_core.format.manifest import Boundary, Manifest
from wal3_core.log.read.reader import FragmentMissingError
from wal3_core.runtime import shared_runtime
from wal3_core.spark import planning
from wal3_core.spark.columns import BATCH_BYTES_MAX, arrow_schema, spark_schema, to_batches
from wal3_core.spark.source import LogDataSource, LogSourceReader
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

PARTITION_BYTES_MAX = 2000


@pytest.fixture
def plan(local_url: str) -> Callable[..., LogSourceReader]:
    """Make a reader as Spark's planner does."""

    def make(**options: object) -> LogSourceReader:
        texts = {"store": local_url, **{name: str(value) for name, value in options.items()}}
        source = LogDataSource(CaseInsensitiveDict(texts))
        schema = source.schema()
        assert isinstance(schema, StructType)
        return source.reader(schema)

    return make


def offsets(reader: LogSourceReader, tasks: list[bytes]) -> list[int]:
    found = []
    for task in tasks:
        for batch in reader.read(pickle.loads(task)):
            found += batch["offset"].to_pylist()
    return found


def planned(reader: LogSourceReader) -> list[bytes]:
    return [pickle.dumps(partition) for partition in reader.partitions()]


def test_replaced_fragments_are_read_from_their_replacement(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=6)
    reader = plan(log="a", partitions=3)
    tasks = planned(reader)

    # The second goes together with the third, which another task reads.
    merge(local_store, "a", 1)

    assert len(tasks) == 3
    assert offsets(reader, tasks) == [*range(1, 61)]


def test_fragments_replaced_under_a_running_task_are_read_from_their_replacement(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=9)
    reader = plan(log="a", partitions=1)
    batches = reader.read(reader.partitions()[0])
    found = next(batches)["offset"].to_pylist()

    merge(local_store, "a", 6)
    for batch in batches:
        found += batch["offset"].to_pylist()

    assert found == [*range(1, 91)]


def test_time_range_cuts_through_a_compacted_fragment(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    edge = pointers(local_store, "a")[2].start.timestamp_us
    merge(local_store, "a", 1)

    for options, expected in (
        ({"from_timestamp_us": edge}, range(21, 41)),
        ({"to_timestamp_us": edge}, range(1, 21)),
        ({"from_timestamp_us": edge, "from_offset": 25}, range(25, 41)),
        ({"to_timestamp_us": edge, "to_offset": 15}, range(1, 15)),
    ):
        reader = plan(log="a", **options)
        assert offsets(reader, planned(reader)) == [*expected], options


def test_log_with_gaps_is_read_whole_and_by_offsets_and_times(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=12, snapshots=TREE)
    edge = pointers(local_store, "a")[3].start.timestamp_us
    gone = {1, 2, 17, *range(20, 31), 45, 120}
    compact(local_store, "a", gone, [(1, 4), (5, 8)])

    for options, low, high in (
        ({}, 1, 121),
        ({"partitions": 5}, 1, 121),
        ({"from_offset": 2, "partitions": 3}, 2, 121),
        ({"from_offset": 25}, 25, 121),
        ({"to_offset": 22}, 1, 22),
        ({"from_timestamp_us": edge}, 31, 121),
        ({"to_timestamp_us": edge}, 1, 31),
    ):
        reader = plan(log="a", **options)
        assert offsets(reader, planned(reader)) == [each for each in range(low, high) if each not in gone], options


@pytest.mark.parametrize("groups", [[], [(1, 4)]])
@pytest.mark.parametrize("options", [{}, {"partitions": 3}, {"from_offset": 15, "to_offset": 27}])
def test_records_dropped_between_planning_and_reading_are_an_error(
    plan: Callable[..., LogSourceReader],
    local_store: ObjectStore,
    options: dict[str, int],
    groups: list[tuple[int, int]],
) -> None:
    """What they were dropped for may lie beyond the end of the DataFrame."""
    fill(local_store, "a", fragments=6)
    reader = plan(log="a", **options)
    tasks = planned(reader)
    compact(local_store, "a", {25}, groups)

    with pytest.raises(GarbageCollectedError, match="compacted since: load the DataFrame again"):
        offsets(reader, tasks)
    again = plan(log="a", **options)
    assert 25 not in offsets(again, planned(again))


def test_fragments_that_became_one_since_planning_are_read_if_nothing_was_dropped(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=6)
    readers = [plan(log="a", **options) for options in ({"partitions": 3}, {"from_offset": 15, "to_offset": 26})]
    tasks = [planned(reader) for reader in readers]

    compact(local_store, "a", (), [(0, 3), (3, 5)])

    assert offsets(readers[0], tasks[0]) == [*range(1, 61)]
    assert offsets(readers[1], tasks[1]) == [*range(15, 26)]


def test_collected_records_are_an_error_and_never_a_gap(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    reader = plan(log="a")
    tasks = planned(reader)

    collect(local_store, "a", 1)

    with pytest.raises(GarbageCollectedError, match="expected an offset the log still holds, from 11, found 1"):
        offsets(reader, tasks)
    with pytest.raises(GarbageCollectedError):
        planned(plan(log="a", from_offset=5))
    again = plan(log="a")
    assert offsets(again, planned(again)) == [*range(11, 41)]


def test_lost_fragment_is_an_error_that_names_it(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    lost = pointers(local_store, "a")[2]
    life_store(local_store, "a").delete(lost.path)
    reader = plan(log="a")

    with pytest.raises(FragmentMissingError, match=lost.path) as failure:
        offsets(reader, planned(reader))

    assert failure.value.__notes__ == ["while reading log a from offset 1 to 41"]


def test_log_that_became_shorter_is_an_error_and_never_a_short_list(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=4)
    reader = plan(log="a")
    tasks = planned(reader)
    for meta in list(local_store.list_objects("a/")):
        local_store.delete(meta.path)

    fill(local_store, "a", fragments=2)

    with pytest.raises(LogError, match="expected log .*, found log .* under its name: destroyed and created again"):
        offsets(reader, tasks)


@pytest.mark.slow
def test_tasks_pickle_small_however_many_fragments_they_read(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=100)

    reader = plan(log="a")

    assert max(map(len, planned(reader))) < PARTITION_BYTES_MAX
    assert len(pickle.dumps(reader)) < PARTITION_BYTES_MAX


def test_from_offset_beyond_the_end_is_refused(plan: Callable[..., LogSourceReader], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)

    reader = plan(log="a", from_offset=11)
    assert offsets(reader, planned(reader)) == []
    with pytest.raises(InvalidRequestError, match="expected an offset from 1 to 11, found 12"):
        planned(plan(log="a", from_offset=12))


def test_offsets_that_a_long_cannot_hold_are_refused(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore
) -> None:
    initial = Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=1)
    place = Boundary(initial.first.seq_no, LogPosition(2**63 - 2, 1))
    manifests = ManifestStore(log_store(local_store, "a"), shared_runtime())
    manifests.create(replace(initial, first=place, next=place))
    with LogWriter.open(local_store, "a") as writer:
        writer.append_many([b"last but one", b"last"])
        writer.append_many([b"too far"])

    fitting = plan(log="a", to_offset=2**63)
    assert offsets(fitting, planned(fitting)) == [2**63 - 2, 2**63 - 1]
    with pytest.raises(InvalidRequestError, match=r"expected positions below 2\^63"):
        planned(plan(log="a"))


def test_batches_are_bounded_whatever_a_fragment_holds() -> None:
    count = 40
    bodies = pa.array([b"x" * 2**20] * count)
    numbers = pa.array(range(count), pa.uint64())
    table = pa.table({"offset": numbers, "timestamp_us": numbers, "key": pa.nulls(count, pa.binary()), "body": bodies})

    batches = list(to_batches(table, arrow_schema(spark_schema()), log="a", fragment="f"))

    assert sum(len(batch) for batch in batches) == count
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES_MAX
    assert len(batches) < 2 * count * 2**20 / BATCH_BYTES_MAX


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "expected one of log, logs and prefix, found none"),
        ({"log": "a", "prefix": "a"}, r"expected one of log, logs and prefix, found \['log', 'prefix'\]"),
        ({"logs": " , "}, "expected names of logs, found none"),
        ({"log": "../a"}, "log name: expected"),
        ({"log": "a", "from_offset": "0"}, "option from_offset: expected an integer from 1 to"),
        ({"log": "a", "to_offset": "-1"}, "option to_offset: expected an integer from 0 to"),
        ({"log": "a", "to_timestamp_us": "1e6"}, "option to_timestamp_us: expected an integer"),
        ({"log": "a", "verify": "maybe"}, "option verify: expected true or false, found 'maybe'"),
        ({"log": "a", "columns": "offset,offset"}, "each once, found offset, offset"),
        ({"log": "a", "columns": ""}, "found none"),
        ({"log": "a", "store": "memory:x"}, "expected one that Spark's workers can open"),
    ],
)
def test_options_are_read_strictly(
    plan: Callable[..., LogSourceReader], options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        plan(**options)


def test_columns_that_contradict_the_schema_are_refused(local_url: str) -> None:
    source = LogDataSource(CaseInsensitiveDict({"store": local_url, "log": "a", "columns": "offset,body"}))

    with pytest.raises(InvalidRequestError, match="expected the columns of the option"):
        source.reader(spark_schema(["offset"]))


def test_small_logs_of_a_task_are_read_many_at_a_time(
    plan: Callable[..., LogSourceReader], local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for log in ("p/a", "p/b"):
        fill(local_store, log, fragments=1)
    reader = plan(prefix="p", partitions=1)
    tasks = planned(reader)
    both = threading.Barrier(2)

    def meet(_kind: str, path: str) -> None:
        if "/log/" in path:
            # One that reads them one after the other waits here for ever.
            both.wait(60)

    store = FaultyStore(local_store, before=meet)
    monkeypatch.setattr(planning, "open_store", lambda _: store)

    assert offsets(reader, tasks) == [*range(1, 11), *range(1, 11)]
