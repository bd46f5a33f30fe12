"""``spark.read.format("wal3")`` gives the same records as LogReader, and reads no more than it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.bad_names import BAD, GOOD, KINDS, Badness, cut_copy_short, spoil
from tests.spark.logs import PER_FRAGMENT, fill, pointers
from tests.stores import damage, life_store
from wal3_core import LogReader, open_store
from wal3_core.format.record import Record
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.spark.columns import COLUMNS
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


pytestmark = pytest.mark.spark
EVERY_COLUMN = ",".join(COLUMNS)
WORKERS_LOG = "spark.sql.pyspark.worker.logging.enabled"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def read(spark: SparkSession, local_url: str) -> Callable[..., DataFrame]:
    """Read logs of the local store with some options."""

    def load(**options: object) -> DataFrame:
        texts = {name: str(value) for name, value in options.items()}
        return spark.read.format("wal3").options(store=local_url, **texts).load()

    return load


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.collect())


def test_columns_and_values_are_those_of_the_reader(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a/x", fragments=3)

    rows = read(log="a/x", columns=EVERY_COLUMN).collect()

    expected: list[tuple[str, Record]] = [
        (pointer.path, record)
        for pointer in pointers(local_store, "a/x")
        for record in LogReader.open(local_store, "a/x").fetch(pointer).records()
    ]
    assert [tuple(row) for row in rows] == [
        ("a/x", record.offset, record.timestamp_us, record.key, record.body, path) for path, record in expected
    ]
    assert {(row["key"] is None, row["body"] is None) for row in rows} == {(True, False), (False, False), (False, True)}


def test_log_and_fragment_are_columns_where_they_are_asked_for(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a/x", fragments=1)
    of_records = ["offset", "timestamp_us", "key", "body"]

    assert read(log="a/x").columns == of_records
    for options in ({"logs": "a/x"}, {"prefix": "a"}):
        assert read(**options).columns == ["log", *of_records]
        assert read(**options).first()["log"] == "a/x"
    assert read(log="a/x", columns="fragment, log").columns == ["fragment", "log"]


PREDICATES: list[tuple[str, Callable[[Row], bool]]] = [
    ("offset = 7", lambda row: row["offset"] == 7),
    ("offset <=> 7", lambda row: row["offset"] == 7),
    ("offset > 12 and offset != 14", lambda row: row["offset"] > 12 and row["offset"] != 14),
    ("offset >= 12 and offset <= 21 and log = 'a'", lambda row: 12 <= row["offset"] <= 21 and row["log"] == "a"),
    ("offset in (3, 25) or log = 'b'", lambda row: row["offset"] in {3, 25} or row["log"] == "b"),
    ("offset > 1000 or offset < -1", lambda _row: False),
    ("offset < -1", lambda _row: False),
    ("offset % 2 = 0 and not (offset > 9)", lambda row: row["offset"] % 2 == 0 and row["offset"] <= 9),
    ("log in ('b', 'nowhere')", lambda row: row["log"] == "b"),
    ("offset > 5 and key is null", lambda row: row["offset"] > 5 and row["key"] is None),
    ("fragment like '%02.parquet' and offset < 15", lambda row: 10 < row["offset"] < 15),
]


@dataclass(frozen=True)
class TwoLogs:
    """A store with logs, and all of their rows."""

    spark: SparkSession
    url: str
    rows: list[Row]

    def where(self, condition: str) -> list[str]:
        options = {"store": self.url, "logs": "a, b", "push_filters": "true", "columns": EVERY_COLUMN}
        return shown(self.spark.read.format("wal3").options(**options).load().where(condition).collect())


def shown(rows: list[Row]) -> list[str]:
    # Rows with nulls do not sort.
    return sorted(map(str, rows))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    """Let Spark push filters."""
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.unset(PUSH_DOWN)


@pytest.fixture(scope="module")
def two_logs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> TwoLogs:
    """Two logs of three fragments."""
    url = tmp_path_factory.mktemp("predicates").as_uri()
    for log in ("a", "b"):
        fill(open_store(url), log, fragments=3)
    frame = spark.read.format("wal3").options(store=url, logs="a, b", columns=EVERY_COLUMN).load()
    return TwoLogs(spark, url, frame.collect())


@pytest.mark.usefixtures("pushing")
@pytest.mark.parametrize(("condition", "satisfied"), PREDICATES, ids=[text for text, _ in PREDICATES])
def test_pushed_filters_mean_what_they_say(two_logs: TwoLogs, condition: str, satisfied: Callable[[Row], bool]) -> None:
    assert two_logs.where(condition) == shown([row for row in two_logs.rows if satisfied(row)])


@pytest.mark.usefixtures("pushing")
def test_pushed_timestamp_filters_keep_whole_fragments_on_their_edge(two_logs: TwoLogs) -> None:
    rows = two_logs.rows
    edge = sorted({row["timestamp_us"] for row in rows})[2]

    for condition, kept in (
        (f"timestamp_us >= {edge}", [row for row in rows if row["timestamp_us"] >= edge]),
        (f"timestamp_us > {edge}", [row for row in rows if row["timestamp_us"] > edge]),
        (f"timestamp_us < {edge}", [row for row in rows if row["timestamp_us"] < edge]),
        (
            f"timestamp_us <= {edge} and offset >= 5",
            [row for row in rows if row["timestamp_us"] <= edge and row["offset"] >= 5],
        ),
    ):
        assert two_logs.where(condition) == shown(kept), condition


@pytest.mark.usefixtures("pushing")
def test_pushed_filters_read_only_the_fragments_that_hold_the_range(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=5)
    fill(local_store, "b", fragments=1)
    fragments = pointers(local_store, "a")
    start, limit = fragments[2].start.timestamp_us, fragments[4].start.timestamp_us
    damage(local_store, "b/manifest/MANIFEST.json")
    for number in (0, 1, 4):
        life_store(local_store, "a").delete(fragments[number].path)

    for condition in ("offset >= 21 and offset < 41", f"timestamp_us >= {start} and timestamp_us < {limit}"):
        frame = read(logs="a,b", push_filters=True)
        assert offsets(frame.where("log = 'a'").where(condition)) == [*range(21, 41)]


@pytest.mark.usefixtures("pushing")
def test_filters_that_stay_above_are_said_once_in_the_log_of_the_plan(spark: SparkSession, two_logs: TwoLogs) -> None:
    spark.conf.set(WORKERS_LOG, "true")
    two_logs.where("offset > 3 and offset != 5 and fragment like '%02.parquet'")

    logged = spark.tvf.python_worker_logs().where("logger = 'wal3.spark'").select("level", "msg").collect()
    spark.conf.unset(WORKERS_LOG)

    expected = "read of logs a,b: filters that do not bound it, which Spark applies to all records read: "
    assert [(row["level"], row["msg"]) for row in logged] == [
        ("WARNING", f"{expected}Not EqualTo(offset), StringEndsWith(fragment)")
    ]


@pytest.mark.usefixtures("pushing")
def test_frame_can_be_used_many_times_over(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=3)

    check_uses(read(log="a"))


@pytest.mark.usefixtures("pushing")
@pytest.mark.xfail(strict=True, reason="Spark reads no more than what the first query's filters left")
def test_frame_that_pushes_filters_can_be_used_many_times_over(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=3)

    check_uses(read(log="a", push_filters=True))


def check_uses(frame: DataFrame) -> None:
    low, high = frame.where("offset < 5"), frame.where("offset > 20")
    assert offsets(low) == [*range(1, 5)]
    assert offsets(frame) == [*range(1, 31)]
    assert offsets(low.union(high)) == [*range(1, 5), *range(21, 31)]


def test_pushing_filters_needs_spark_s_configuration(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)

    with pytest.raises(PySparkException, match=PUSH_DOWN):
        read(log="a", push_filters=True).collect()


def test_frame_ends_where_its_log_ended_when_first_used(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=1)
    frame = read(log="a")
    before = frame.count()

    fill(local_store, "a", fragments=1)

    assert (before, frame.count(), read(log="a").count()) == (10, 10, 20)


def test_offset_range_reads_only_the_fragments_that_hold_it(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=5)
    fragments = pointers(local_store, "a")
    for number in (0, 1, 4):
        life_store(local_store, "a").delete(fragments[number].path)

    assert offsets(read(log="a", from_offset=25, to_offset=38)) == [*range(25, 38)]
    with pytest.raises(PySparkException, match="expected a file, found none"):
        read(log="a").collect()


def test_time_range_reads_only_the_fragments_that_hold_it(
    read: Callable[..., DataFrame], local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=5)
    fragments = pointers(local_store, "a")
    start, limit = fragments[2].start.timestamp_us, fragments[4].start.timestamp_us
    for number in (0, 4):
        life_store(local_store, "a").delete(fragments[number].path)
    damage(life_store(local_store, "a"), fragments[1].path)

    # A fragment whose last record has the microsecond at which the range starts would be read.
    assert fragments[1].limit.timestamp_us < start
    assert offsets(read(log="a", from_timestamp_us=start, to_timestamp_us=limit)) == [*range(21, 41)]
    assert offsets(read(log="a", from_timestamp_us=start, to_timestamp_us=limit, from_offset=5)) == [*range(21, 41)]
    assert offsets(read(log="a", from_timestamp_us=start, to_timestamp_us=limit, from_offset=25)) == [*range(25, 41)]


def test_prefix_reads_a_log_and_those_below_it(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    for log in ("a", "a/x", "a/y/z", "ab", "b"):
        fill(local_store, log, fragments=1)

    def logs(**options: str) -> list[str]:
        return sorted(row["log"] for row in read(**options).select("log").distinct().collect())

    assert logs(prefix="a") == ["a", "a/x", "a/y/z"]
    assert logs(prefix="") == ["a", "a/x", "a/y/z", "ab", "b"]
    assert logs(logs="b, a/x,b") == ["a/x", "b"]
    assert read(logs="b, a/x,b").count() == 2 * PER_FRAGMENT


def test_unfinished_copy_is_left_out_of_a_prefix(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a/good", fragments=1)
    cut_copy_short(local_store, "a/good", "a/copies/one")

    assert read(prefix="a").count() == PER_FRAGMENT
    for options in ({"prefix": "a/copies"}, {"logs": "a/good,a/copies/one"}):
        with pytest.raises(PySparkException, match="found a copy of .* that is under way"):
            read(**options).count()

    copy(LogAt(local_store, "a/good"), LogAt(local_store, "a/copies/one"))
    assert read(prefix="a").count() == 2 * PER_FRAGMENT


@pytest.mark.parametrize("badness", [Badness.DENIED, Badness.DAMAGED, Badness.LOST])
def test_log_that_cannot_be_read_fails_the_read_of_a_prefix(
    read: Callable[..., DataFrame], local_store: ObjectStore, badness: Badness
) -> None:
    for log in (BAD, GOOD):
        fill(local_store, log, fragments=1)
    spoil(local_store, badness)

    with pytest.raises(PySparkException, match=KINDS[badness]):
        read(prefix="").count()


def test_schema_of_the_user_selects_the_columns(
    spark: SparkSession, local_url: str, local_store: ObjectStore, read: Callable[..., DataFrame]
) -> None:
    fill(local_store, "a", fragments=2)

    frame = spark.read.format("wal3").schema("offset LONG").options(store=local_url, log="a").load()

    assert [tuple(row) for row in frame.collect()] == [(offset,) for offset in range(1, 21)]
    swapped = read(log="a", columns="body, offset")
    assert swapped.columns == ["body", "offset"]
    assert swapped.where("offset = 2").collect()[0]["body"] == b"a 1"


def test_schema_with_another_type_is_refused(spark: SparkSession, local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)

    for schema, complaint in (
        ("offset INT", "column offset: expected bigint, found int"),
        ("offset LONG, size LONG", "expected some of log, offset, .*, found offset, size"),
    ):
        frame = spark.read.format("wal3").schema(schema).options(store=local_url, log="a").load()
        with pytest.raises(PySparkException, match=complaint):
            frame.collect()


def test_many_fragments_make_few_tasks(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=60)

    assert 1 <= read(log="a").rdd.getNumPartitions() <= 4
    assert read(log="a", partitions=3).rdd.getNumPartitions() == 3
    assert read(log="a", partitions=1000).rdd.getNumPartitions() == 60
    assert offsets(read(log="a", partitions=7)) == [*range(1, 601)]


def test_damaged_fragment_fails_the_read_by_name(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=3)
    bad = pointers(local_store, "a")[1]
    damage(life_store(local_store, "a"), bad.path)

    with pytest.raises(PySparkException, match=bad.path) as failure:
        read(log="a").collect()

    assert "while reading log a from offset 1 to 31" in str(failure.value)
    assert offsets(read(log="a", from_offset=21)) == [*range(21, 31)]


def test_log_without_records_is_an_empty_frame(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=0)

    assert read(log="a").count() == 0
    assert read(log="a", from_offset=1).count() == 0


def test_missing_log_fails(read: Callable[..., DataFrame], local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)

    with pytest.raises(PySparkException, match="create the log first"):
        read(log="b").count()
    with pytest.raises(PySparkException, match="expected logs at or below 'b', found none"):
        read(prefix="b").count()


def test_unknown_option_fails_before_anything_is_read(read: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match=r"found \['from_offest'\]"):
        read(log="a", from_offest=3)
