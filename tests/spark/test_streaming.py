"""``readStream`` and ``writeStream`` in a real query: each record once, also when Spark repeats a batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.logs import fill
from tests.spark.queries import until_connected
from wal3_core import LogReader, open_store
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


pytestmark = [pytest.mark.spark, pytest.mark.slow]
QUERY_S = 240


def stream(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("wal3")
        .options(**{"store": url, "prefix": "p", "maxRecordsPerTrigger": "7"} | options)
        .load()
    )


def run(frame: DataFrame, kind: str, checkpoint: Path, **options: str) -> StreamingQuery:
    """Take all that is there, as a query that is started now would."""
    writer = frame.writeStream.format(kind).options(checkpointLocation=str(checkpoint), **options)

    def take() -> StreamingQuery:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_S)
        return query

    return until_connected(take)


def forget_last_commit(checkpoint: Path) -> None:
    """Leave the checkpoint as a query does that dies when its sink has the last batch, before Spark noted that."""
    last = max((path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_stream_gives_each_record_once_over_restarts_and_finds_new_logs(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    fill(local_store, "p/a", fragments=2)
    found, checkpoint = tmp_path / "found", tmp_path / "checkpoint"
    frame = stream(spark, local_url, cursor="stream").select("log", "offset")

    query = run(frame, "parquet", checkpoint, path=str(found))
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [7, 7, 6]
    # Spark tells the source of a batch's end when it plans the next one.
    assert CursorStore(local_store, "p/a").offsets() == {"stream": 15}
    forget_last_commit(checkpoint)
    fill(local_store, "p/a", fragments=1)
    fill(local_store, "p/new", fragments=1)
    run(frame, "parquet", checkpoint, path=str(found))

    rows = sorted((row["log"], row["offset"]) for row in spark.read.parquet(str(found)).collect())
    assert rows == [("p/a", offset) for offset in range(1, 31)] + [("p/new", offset) for offset in range(1, 11)]


def test_checkpoint_of_version_0_1_0_is_gone_on_with(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    """Its query died in its first batch, which takes four records of p/a and three of p/b."""
    found, checkpoint = tmp_path / "found", tmp_path / "checkpoint"
    shutil.copytree(Path(__file__).parent.parent / "golden" / "stream_checkpoint", checkpoint)
    for log, digit in (("p/a", "a"), ("p/b", "b")):
        initial = Manifest.initial(log_id=LogId(32 * digit), writer="test", timestamp_us=1)
        ManifestStore(log_store(local_store, log), shared_runtime()).create(initial)
        fill(local_store, log, fragments=1)

    run(stream(spark, local_url).select("log", "offset"), "parquet", checkpoint, path=str(found))

    rows = sorted((row["log"], row["offset"]) for row in spark.read.parquet(str(found)).collect())
    assert rows == [(log, offset) for log in ("p/a", "p/b") for offset in range(1, 11)]
    assert (checkpoint / "commits" / "2").exists()
    assert not (checkpoint / "commits" / "3").exists()


def test_stream_into_a_log_appends_a_batch_that_spark_repeats_once(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    fill(local_store, "p/a", fragments=2)
    checkpoint = tmp_path / "checkpoint"
    frame = stream(spark, local_url).selectExpr("'copy' AS log", "key", "body")
    options = {"store": local_url, "create": "true", "writer": "copier", "routes": "routes"}

    run(frame, "wal3", checkpoint, **options)
    forget_last_commit(checkpoint)
    fill(local_store, "p/a", fragments=1)
    run(frame, "wal3", checkpoint, **options)

    assert list(CursorStore(local_store, "copy").offsets()) == ["writer-copier"]
    # A note for each batch.
    assert [each.body for each in LogReader.open(local_store, "routes").records()] == [b'["copy"]'] * 5
    copied = [(record.key, record.body) for record in LogReader.open(open_store(local_url), "copy").records()]
    assert copied == [(record.key, record.body) for record in LogReader.open(local_store, "p/a").records()]


def test_batches_of_a_new_checkpoint_are_not_taken_for_those_of_the_one_before(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    fill(local_store, "p/a", fragments=1)
    frame = stream(spark, local_url, maxRecordsPerTrigger="1000").selectExpr("'copy' AS log", "key", "body")

    for checkpoint in ("before", "new"):
        run(frame, "wal3", tmp_path / checkpoint, store=local_url, create="true", writer="copier")

    bodies = [record.body for record in LogReader.open(local_store, "p/a").records()]
    assert [record.body for record in LogReader.open(local_store, "copy").records()] == bodies * 2


def test_query_whose_checkpoint_was_put_back_is_refused_and_doubles_nothing(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    fill(local_store, "p/a", fragments=1)
    frame = stream(spark, local_url).selectExpr("'copy' AS log", "key", "body")
    checkpoint, options = tmp_path / "checkpoint", {"store": local_url, "create": "true", "writer": "copier"}
    run(frame, "wal3", checkpoint, **options)
    shutil.copytree(checkpoint, tmp_path / "older")
    for _ in range(2):
        fill(local_store, "p/a", fragments=1)
        run(frame, "wal3", checkpoint, **options)

    with pytest.raises(StreamingQueryException, match="or a later one, found number 2, .* delete the cursor"):
        run(frame, "wal3", tmp_path / "older", **options)

    bodies = [record.body for record in LogReader.open(local_store, "p/a").records()]
    assert [record.body for record in LogReader.open(local_store, "copy").records()] == bodies
