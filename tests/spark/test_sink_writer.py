"""The writer of rows, called as Spark calls it: of several attempts of a task, and of repeated writes, one counts."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from wal3_core import InvalidRequestError, LogReader, LogWriter, seal
from wal3_core.errors import NotDurableError, SealedError, UnknownDurabilityError
from wal3_core.spark.requests import WriteRequest
from wal3_core.spark.sink import LogSinkWriter, LogStreamSinkWriter, Staged
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.object_store import ObjectStore

SCHEMA = StructType([StructField("log", StringType()), StructField("body", StringType())])


def request(url: str, *, streaming: bool = False, **options: str) -> WriteRequest:
    given = {"store": url, "create": "true", **options}
    return WriteRequest.from_options(given, SCHEMA, overwrite=False, streaming=streaming)


def rows(*pairs: tuple[str | None, str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"log": [log for log, _ in pairs], "body": [body for _, body in pairs]})


def bodies(store: ObjectStore, log: str) -> list[bytes | None]:
    return [record.body for record in LogReader.open(store, log).records()]


def attempt(writer: LogSinkWriter | LogStreamSinkWriter, *pairs: tuple[str | None, str]) -> Staged:
    """Run a task that gets its rows in two batches."""
    middle = len(pairs) // 2
    return writer.write(iter([rows(*pairs[:middle]), rows(*pairs[middle:])]))


def test_of_two_attempts_of_a_task_one_is_in_the_logs(local_url: str, local_store: ObjectStore) -> None:
    writer = LogSinkWriter(request(local_url))
    first = attempt(writer, ("a", "1"), ("b/c", "2"), ("a", "3"))
    lost = attempt(writer, ("a", "lost"), ("b/c", "lost"))
    second = attempt(writer, ("b/c", "4"), ("a", "5"))

    writer.commit([first, second])
    late = attempt(writer, ("a", "late"))

    assert (bodies(local_store, "a"), bodies(local_store, "b/c")) == ([b"1", b"3", b"5"], [b"2", b"4"])
    assert lost.fragments
    assert late.fragments


def test_write_of_a_name_that_is_repeated_completes_what_is_missing(local_url: str, local_store: ObjectStore) -> None:
    named = request(local_url, writer="nightly", write_id="monday")
    for log in ("a", "b"):
        LogWriter.create(local_store, log)
    staged = attempt(LogSinkWriter(named), ("a", "1"), ("b", "2"))
    seal(local_store, "b", reason="test")
    with pytest.raises(SealedError) as failure:
        LogSinkWriter(named).commit([staged])
    assert failure.value.__notes__ == ["while writing to log b", "logs that have their rows: a"]

    again = LogSinkWriter(named)
    again.commit([attempt(again, ("a", "1"), ("c", "2"))])
    tuesday = LogSinkWriter(request(local_url, writer="nightly", write_id="tuesday"))
    tuesday.commit([attempt(tuesday, ("a", "3"), ("a", "4"))])

    assert (bodies(local_store, "a"), bodies(local_store, "c")) == ([b"1", b"3", b"4"], [b"2"])
    assert list(CursorStore(local_store, "a").offsets()) == ["writer-nightly"]


def test_batch_of_a_stream_that_is_repeated_is_appended_once(local_url: str, local_store: ObjectStore) -> None:
    writer = LogStreamSinkWriter(request(local_url, streaming=True, writer="copier"))
    for batch in (0, 1, 1, 2):
        writer.commit([attempt(writer, ("a", f"{batch}"), ("a", f"{batch}"))], batch)

    assert bodies(local_store, "a") == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_batch_of_a_driver_thought_dead_is_refused_also_if_it_is_staged_again(
    local_url: str, local_store: ObjectStore
) -> None:
    writer = LogStreamSinkWriter(request(local_url, streaming=True, writer="copier"))

    def commit(batch: int, query: str) -> None:
        writer.commit([replace(attempt(writer, ("a", f"{query} {batch}"), ("a", "x")), query_id=query)], batch)

    for batch, query in ((0, "q"), (1, "q"), (1, "q"), (2, "q"), (0, "new checkpoint")):
        commit(batch, query)
    with pytest.raises(UnknownDurabilityError, match="expected number 2 of q, .* found number 1") as failure:
        commit(1, "q")

    assert "logs that have their rows: none" in failure.value.__notes__
    written = [each for each in bodies(local_store, "a") if each != b"x"]
    assert written == [b"q 0", b"q 1", b"q 2", b"new checkpoint 0"]


def test_other_rows_under_a_name_are_refused_unless_the_write_allows_them(
    local_url: str, local_store: ObjectStore
) -> None:
    named = {"writer": "nightly", "write_id": "monday"}
    first = LogSinkWriter(request(local_url, **named))
    first.commit([attempt(first, ("a", "1"), ("a", "2"))])

    # In another order, and of other tasks.
    first.commit([attempt(first, ("a", "2")), attempt(first, ("a", "1"))])
    with pytest.raises(NotDurableError, match=r"'write monday' .* 2 records, setsum \w+, found 2 records, setsum"):
        first.commit([attempt(first, ("a", "1"), ("a", "3"))])
    any_rows = LogSinkWriter(request(local_url, same_rows="false", **named))
    any_rows.commit([attempt(any_rows, ("a", "1"))])

    assert bodies(local_store, "a") == [b"1", b"2"]


@pytest.mark.slow
def test_write_with_a_number_is_made_once_however_many_came_between(local_url: str, local_store: ObjectStore) -> None:
    def write(write_id: str, number: int) -> None:
        named = request(local_url, writer="nightly", write_id=write_id, write_number=f"{number}")
        writer = LogSinkWriter(named)
        writer.commit([attempt(writer, ("a", f"{write_id} {number}"), ("a", "x"))])

    for number in range(20):
        write("first", number)
    write("second", 0)
    write("first", 19)
    with pytest.raises(UnknownDurabilityError, match="expected number 19 of first, .* found number 0"):
        write("first", 0)

    written = [each for each in bodies(local_store, "a") if each != b"x"]
    assert written == [*(b"first %d" % number for number in range(20)), b"second 0"]


def test_repeated_write_whose_rows_move_to_another_log_is_refused_where_noted(
    local_url: str, local_store: ObjectStore
) -> None:
    named = {"writer": "nightly", "write_id": "monday", "routes": "routes"}
    first = LogSinkWriter(request(local_url, **named))
    first.commit([attempt(first, ("a", "1"), ("b", "2")), attempt(first, ("a", "3"))])

    first.commit([attempt(first, ("a", "3"), ("a", "1")), attempt(first, ("b", "2"))])
    for moved in ((("a", "1"), ("c", "2"), ("a", "3")), (("a", "1"), ("a", "3"))):
        with pytest.raises(NotDurableError, match=r"log routes: append 'write monday' .* setsum") as failure:
            first.commit([attempt(first, *moved)])
        assert "while noting in log routes to which logs this write goes" in failure.value.__notes__[0]
    with pytest.raises(InvalidRequestError, match="option routes: expected a log that gets no rows, found routes"):
        first.commit([attempt(first, ("routes", "1"))])

    assert bodies(local_store, "routes") == [b'["a", "b"]']
    assert (bodies(local_store, "a"), bodies(local_store, "b")) == ([b"1", b"3"], [b"2"])
    assert LogReader.open(local_store, "c").manifest().next.position.offset == 1


def test_batch_of_a_driver_thought_dead_to_other_logs_is_refused_where_noted(
    local_url: str, local_store: ObjectStore
) -> None:
    zombie = LogStreamSinkWriter(request(local_url, streaming=True, writer="copier", routes="routes"))
    other = LogStreamSinkWriter(request(local_url, streaming=True, writer="copier", routes="routes"))
    staged = replace(attempt(zombie, ("a", "1")), query_id="q")

    for batch in (0, 1):
        other.commit([replace(attempt(other, ("b", f"{batch}")), query_id="q")], batch)
    with pytest.raises(UnknownDurabilityError, match="log .*routes.* found number 0"):
        zombie.commit([staged], 0)
    # Without rows.
    with pytest.raises(NotDurableError, match="'batch 1 q'"):
        other.commit([replace(attempt(other), query_id="q")], 1)
    one_log = LogStreamSinkWriter(
        WriteRequest.from_options(
            {"store": local_url, "log": "b", "writer": "copier", "routes": "routes"},
            StructType([StructField("body", StringType())]),
            overwrite=False,
            streaming=True,
        )
    )
    no_rows = pa.RecordBatch.from_pydict({"body": pa.array([], pa.string())})
    for batches in ([no_rows], []):
        one_log.commit([replace(one_log.write(iter(batches)), query_id="q")], 2)

    assert (bodies(local_store, "a"), bodies(local_store, "b")) == ([], [b"0", b"1"])


def test_write_of_which_a_task_has_nothing_to_show_appends_nothing(local_url: str, local_store: ObjectStore) -> None:
    writer = LogSinkWriter(request(local_url))
    staged = attempt(writer, ("a", "1"))

    with pytest.raises(NotDurableError, match="expected what each of 2 tasks has staged, found nothing of 1"):
        writer.commit([staged, None])

    assert bodies(local_store, "a") == []


def test_row_without_a_log_and_options_that_do_not_fit_are_refused(local_url: str) -> None:
    with pytest.raises(InvalidRequestError, match="column log: expected a log's name in each row, found null"):
        attempt(LogSinkWriter(request(local_url)), ("a", "1"), (None, "2"))
    with pytest.raises(InvalidRequestError, match="write: column log name: expected parts"):
        attempt(LogSinkWriter(request(local_url)), ("a", "1"), ("../b", "2"))
    for options, streaming, complaint in (
        ({"writer": "x"}, False, "expected writer and write_id together, or neither"),
        ({}, True, "expected writer, a name for this query alone, and no write_id, found neither"),
        ({"log": "a"}, False, r"as the option log names the log, found \['log', 'body'\]"),
        ({"same_rows": "false"}, False, "expected writer with same_rows, found same_rows alone"),
        ({"mode": "x"}, False, r"found \['mode'\]"),
        ({"routes": "r"}, False, "expected writer with routes, found routes alone"),
        ({"writer": "x", "write_id": "", "write_number": "1"}, False, "write_number, found none, or an empty one"),
        ({"writer": "x", "write_id": "y", "write_number": "-1"}, False, "option write_number: expected an integer"),
        ({"writer": "x", "write_number": "1"}, True, r"and no write_id, found \['write_number', 'writer'\]"),
    ):
        with pytest.raises(InvalidRequestError, match=complaint):
            request(local_url, streaming=streaming, **options)
