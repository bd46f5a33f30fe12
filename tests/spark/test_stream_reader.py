"""The reader of a stream, called as Spark calls it: where batches begin and end, and what is an error."""

from __future__ import annotations

import base64
import json
import zlib
from itertools import chain

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.logs import collect, fill
from tests.stores import LOG_ID
from wal3_core import FeedSubscription, InvalidRequestError, LogReader, LogWriter, destroy, migrate, undo_destroy
from wal3_core.errors import CorruptError, GarbageCollectedError, LogNotFoundError, LogReplacedError
from wal3_core.format.manifest import BEING_DESTROYED, Seal
from wal3_core.format.paths import MANIFEST, LogId
from wal3_core.runtime import shared_runtime
from wal3_core.spark.columns import COLUMNS, spark_schema
from wal3_core.spark.requests import StreamRequest
from wal3_core.spark.stream import LogStreamReader, Reached, begin_of, from_json, share_out, to_json
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

OffsetJson = dict[str, object]


class Query:
    """A query as Spark runs it: offsets pass through JSON, and every plan and read is by a reader of its own."""

    def __init__(self, url: str, **options: str) -> None:
        self.options = {"store": url, **({} if {"log", "logs"} & set(options) else {"prefix": ""}), **options}
        self.at: OffsetJson | None = None
        self.restart()

    def restart(self) -> None:
        self.reader = self.new_reader()

    def new_reader(self) -> LogStreamReader:
        return LogStreamReader(StreamRequest.from_options(self.options), spark_schema(COLUMNS))

    def next_end(self) -> tuple[OffsetJson, OffsetJson]:
        start = self.at if self.at is not None else plain(self.reader.initialOffset())
        return start, plain(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))

    def read(self, start: OffsetJson, end: OffsetJson) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for partition in self.new_reader().partitions(start, end):
            for batch in self.new_reader().read(partition):
                found += zip(batch["log"].to_pylist(), batch["offset"].to_pylist(), strict=True)
        return sorted(found)

    def batch(self) -> list[tuple[str, int]]:
        start, end = self.next_end()
        found = self.read(start, end)
        self.at = end
        self.reader.commit(end)
        return found


def plain(offsets: OffsetJson) -> OffsetJson:
    found = json.loads(json.dumps(offsets))
    assert isinstance(found, dict)
    return found


def of(log: str, *offsets: range) -> list[tuple[str, int]]:
    return [(log, offset) for each in offsets for offset in each]


def test_batches_hold_each_record_once_and_new_logs_from_their_beginning(
    local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=2)
    query = Query(local_url)

    assert query.batch() == of("a", range(1, 21))
    assert query.batch() == []
    fill(local_store, "a", fragments=1)
    fill(local_store, "b/new", fragments=1)
    query.restart()
    assert query.batch() == of("a", range(21, 31)) + of("b/new", range(1, 11))
    assert query.next_end() == (query.at, query.at)


def test_batch_that_is_repeated_holds_the_same_records(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    for start in ("beginning", "end"):
        query = Query(local_url, start=start)
        begun, end = query.next_end()
        expected = query.read(begun, end)
        assert expected == (of("a", range(1, 11)) if start == "beginning" else [])
        fill(local_store, "a", fragments=1)
        fill(local_store, "new", fragments=1)

        # Spark keeps the end of a batch, and asks again where the first one begins.
        again = plain(query.new_reader().initialOffset())
        assert query.read(again, end) == expected
        query.at = end
        assert query.batch() == of("a", range(11, 21)) + of("new", range(1, 11))
        destroy(local_store, "new")
        destroy(local_store, "a")
        fill(local_store, "a", fragments=1)


def test_limit_is_kept_and_shared_among_logs(local_url: str, local_store: ObjectStore) -> None:
    for log, fragments in (("a", 3), ("b", 1), ("c", 2)):
        fill(local_store, log, fragments=fragments)
    query = Query(local_url, maxRecordsPerTrigger="16")

    first = query.batch()
    assert first == of("a", range(1, 7)) + of("b", range(1, 6)) + of("c", range(1, 6))
    batches = [first]
    while batches[-1]:
        batches.append(query.batch())
    assert sorted(chain.from_iterable(batches)) == of("a", range(1, 31)) + of("b", range(1, 11)) + of("c", range(1, 21))
    assert [len(batch) for batch in batches] == [16, 16, 16, 12, 0]


def test_limit_below_the_number_of_logs_starves_none() -> None:
    behind, done = {"a": 5, "b": 3, "c": 0, "d": 1}, 0
    while any(behind.values()):
        granted = share_out(behind, 1, turn=done)
        assert sum(granted.values()) == 1
        assert all(granted[log] <= behind[log] for log in behind)
        behind = {log: count - granted[log] for log, count in behind.items()}
        done += 1
    assert done == 9


def test_query_that_takes_what_is_there_ends_there(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    query = Query(local_url, maxRecordsPerTrigger="7")

    query.reader.prepareForTriggerAvailableNow()
    fill(local_store, "a", fragments=1)
    fill(local_store, "new", fragments=1)

    assert [query.batch() for _ in range(3)] == [of("a", range(1, 8)), of("a", range(8, 11)), []]
    assert query.reader.latestOffset(query.at or {}, ReadAllAvailable()) == query.at
    query.restart()
    assert query.batch() == of("a", range(11, 15)) + of("new", range(1, 4))


def test_collected_range_is_an_error_that_says_which_or_is_skipped(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=3)
    query = Query(local_url, maxRecordsPerTrigger="5")
    query.batch()
    start, end = query.next_end()
    collect(local_store, "a", 2)

    expected = "log a: expected the records from offset 6 on, where the stream is, found those below 21 collected"
    with pytest.raises(GarbageCollectedError, match=expected):
        query.next_end()
    with pytest.raises(GarbageCollectedError, match="set the option failOnDataLoss to false"):
        query.read(start, end)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.read(start, end) == []
    assert [query.batch(), query.batch()] == [of("a", range(21, 26)), of("a", range(26, 31))]


def test_log_created_again_is_an_error_that_names_it_or_is_begun_again(
    local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=1)
    fill(local_store, "b", fragments=1)
    query = Query(local_url)
    query.batch()
    fill(local_store, "b", fragments=1)
    start, end = query.next_end()
    destroy(local_store, "b")

    with pytest.raises(LogNotFoundError, match="log .*/b: expected a log, found that it was destroyed") as gone:
        query.next_end()
    assert "the stream is at offset 11 of it" in gone.value.__notes__[0]
    fill(local_store, "b", fragments=1)
    with pytest.raises(LogReplacedError, match="log b: expected log .*, of which the stream has read up to offset 11"):
        query.next_end()
    with pytest.raises(LogReplacedError, match="log .*/b: expected log "):
        query.read(start, end)
    query.options["failOnDataLoss"] = "false"
    query.restart()
    assert query.read(start, end) == []
    assert query.batch() == of("b", range(1, 11))
    destroy(local_store, "b")
    assert query.batch() == []


def test_older_state_of_a_log_is_an_error(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    query = Query(local_url)
    query.batch()
    log_id = LogReader.open(local_store, "a").manifest().log_id
    query.at = dict(to_json({"a": Reached(log_id, 1, 99)}))

    with pytest.raises(CorruptError, match="log a: expected records up to offset 99, which the stream has read"):
        query.next_end()


def test_batch_that_is_repeated_after_an_older_manifest_was_restored_is_refused(
    local_url: str, local_store: ObjectStore
) -> None:
    """It would end with the log, and the next batch begin behind it: records that come meanwhile would be in none."""
    fill(local_store, "a", fragments=1)
    older = local_store.read(f"a/{MANIFEST}")
    assert older is not None
    fill(local_store, "a", fragments=1)
    start, end = Query(local_url).next_end()
    local_store.delete(f"a/{MANIFEST}")
    local_store.create(f"a/{MANIFEST}", older)

    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(CorruptError, match="an older state of it was restored"):
            Query(local_url, **options).read(start, end)


def test_stream_of_a_sealed_log_goes_on_in_its_successor(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    query = Query(local_url, log="a")
    query.batch()
    migrate(local_store, "a", "b", reason="test")
    fill(local_store, "b", fragments=1)

    assert query.batch() == of("b", range(11, 21))
    assert query.batch() == []


def test_successor_is_read_from_what_is_there_also_when_the_log_before_is_gone(
    local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=1)
    query = Query(local_url, prefix="a", failOnDataLoss="false")
    query.batch()
    migrate(local_store, "a", "b", reason="test")
    query.batch()
    destroy(local_store, "a")
    fill(local_store, "b", fragments=1)

    query.reader.prepareForTriggerAvailableNow()

    assert query.batch() == of("b", range(11, 21))
    fill(local_store, "b", fragments=1)
    assert query.batch() == []


def test_named_log_that_does_not_exist_is_an_error_a_prefix_without_logs_is_not(
    local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=1)

    with pytest.raises(LogNotFoundError, match="expected a log, found none: create the log first"):
        Query(local_url, log="b").next_end()
    query = Query(local_url, prefix="later")
    assert query.batch() == []
    fill(local_store, "later/x", fragments=1)
    assert query.batch() == of("later/x", range(1, 11))


def test_cursor_keeps_what_is_not_read_and_follows_what_is(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=2)
    query = Query(local_url, cursor="stream", maxRecordsPerTrigger="15")
    cursors = CursorStore(local_store, "a")

    query.next_end()
    assert cursors.offsets() == {"stream": 1}
    query.batch()
    assert cursors.offsets() == {"stream": 16}
    query.restart()
    query.batch()
    witness = cursors.load("stream")
    assert witness is not None
    assert witness.cursor.position == LogReader.open(local_store, "a").manifest().next.position
    # A stream that begins again does not move it back.
    again = Query(local_url, cursor="stream")
    again.batch()
    assert cursors.load("stream") == witness


def test_cursor_of_a_subscription_is_not_moved(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    FeedSubscription.open(local_store, "a", "stream").close()
    before = CursorStore(local_store, "a").list()

    with pytest.raises(InvalidRequestError, match="found that of a subscription to a feed"):
        Query(local_url, cursor="stream").batch()

    assert CursorStore(local_store, "a").list() == before


def test_options_of_batches_are_refused() -> None:
    for options, complaint in (
        ({"from_offset": "3"}, r"expected none of .*, found \['from_offset'\]"),
        ({"start": "now"}, "option start: expected beginning or end, found 'now'"),
        ({"maxRecordsPerTrigger": "0"}, "option maxRecordsPerTrigger: expected an integer from 1"),
        ({"maxrecords": "1"}, r"found \['maxrecords'\]"),
    ):
        with pytest.raises(InvalidRequestError, match=complaint):
            StreamRequest.from_options({"store": "file:///x", "log": "a", **options})


def test_offsets_pass_through_json_and_others_are_refused(local_store: ObjectStore) -> None:
    LogWriter.create(local_store, "a")
    log_id: LogId = LogReader.open(local_store, "a").manifest().log_id
    places = {"b": Reached(log_id, 1, 5), "a": Reached(log_id, 3, 3, initial=True)}

    assert from_json(json.loads(json.dumps(to_json(places)))) == places
    assert list(to_json(places)) == ["a", "b"]
    assert begin_of("a", places, Reached(log_id, 1, 9)) == 1
    assert begin_of("b", places, Reached(log_id, 1, 9)) == 5
    for wrong in ({}, {"id": log_id, "first": 5, "offset": 3}, {"id": "x", "first": 1, "offset": 3}, 7):
        with pytest.raises(CorruptError, match="offset of the stream in log"):
            from_json({"a": wrong})


def test_offsets_of_many_logs_name_those_that_moved() -> None:
    def plus(places: dict[str, Reached], *numbers: int) -> dict[str, Reached]:
        return places | {f"p/{number}": Reached(LOG_ID, 1, 9) for number in numbers}

    places = {f"p/{number}": Reached(LOG_ID, 1, 1 + number % 3) for number in range(200)}
    # As earlier versions wrote them.
    by_name: OffsetJson = {log: place.to_json() for log, place in places.items()}

    first = to_json(places, before=by_name)
    assert from_json(by_name) == from_json(first) == places
    assert set(first) == {"*"}
    second = to_json(plus(places, 7, 200), before=first)
    assert (set(second), second["*"]) == ({"*", "p/7", "p/200"}, first["*"])
    assert from_json(plain(second)) == plus(places, 7, 200)
    assert set(to_json(plus(places, *range(30)), before=second)) == {"*"}
    fewer = {log: place for log, place in places.items() if log != "p/7"}
    assert from_json(to_json(fewer, before=second)) == fewer
    assert len(json.dumps(first)) < len(json.dumps(by_name)) / 2
    for wrong in ("", "x", str(first["*"])[8:], base64.b64encode(zlib.compress(b"[1]")).decode(), 7):
        with pytest.raises(CorruptError, match="expected packed places of logs"):
            from_json({"*": wrong})


def test_stream_of_many_logs_goes_on_where_it_was(local_url: str, local_store: ObjectStore) -> None:
    logs = [f"p/{number}" for number in range(110)]
    for log in logs:
        fill(local_store, log, fragments=1)
    query, old = Query(local_url, prefix="p"), Query(local_url, prefix="p")
    assert len(query.batch()) == len(logs) * 10
    old.at = {log: place.to_json() for log, place in from_json(query.at or {}).items()}

    for each in (query, old):
        assert each.next_end() == (each.at, each.at)
        each.restart()
    fill(local_store, "p/3", fragments=1)
    fill(local_store, "p/new", fragments=1)

    expected = of("p/3", range(11, 21)) + of("p/new", range(1, 11))
    assert query.batch() == old.batch() == expected
    assert set(query.at or {}) == {"", "*", "p/3", "p/new"}
    assert from_json(query.at or {}) == from_json(old.at or {})
    query.restart()
    assert query.batch() == []


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"prefix": "p"}, {"prefix": "q"}, "prefix 'q'"),
        ({"prefix": "p"}, {"prefix": "p/a"}, "prefix 'p/a'"),
        ({"prefix": "p"}, {"logs": "p/a,p/b"}, "logs p/a,p/b"),
        ({"logs": "p/a,p/b"}, {"log": "p/a"}, "logs p/a"),
        ({"log": "p/a"}, {"prefix": "p/b"}, "prefix 'p/b'"),
    ],
)
def test_checkpoint_of_other_logs_is_refused(
    local_url: str, local_store: ObjectStore, before: dict[str, str], after: dict[str, str], found: str
) -> None:
    query = asked_anew(local_url, local_store, before, after)

    with pytest.raises(InvalidRequestError, match=f"of which its checkpoint is, .* found {found}: .* new checkpoint"):
        query.batch()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"prefix": "p"}, {"prefix": "p/"}),
        ({"prefix": "p"}, {"prefix": ""}),
        ({"log": "p/a"}, {"logs": "p/b,p/a"}),
        ({"logs": "p/a,p/b"}, {"prefix": "p"}),
    ],
)
def test_stream_that_is_asked_for_more_logs_goes_on(
    local_url: str, local_store: ObjectStore, before: dict[str, str], after: dict[str, str]
) -> None:
    query = asked_anew(local_url, local_store, before, after)
    at = query.at or {}

    assert not {log for log, _ in query.batch()} & set(at)
    assert query.next_end() == (query.at, query.at)


def test_checkpoint_that_does_not_note_what_was_asked_for_is_read_on(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "p/a", fragments=1)
    old = {log: place for log, place in read_all(Query(local_url, prefix="p")).items() if log}
    query = Query(local_url, prefix="p")
    query.at = old
    assert query.next_end() == (old, old)

    fill(local_store, "p/b", fragments=1)
    assert {log for log, _ in query.batch()} == {"p/b"}
    query.at = {**(query.at or {}), "": {"suffix": "x"}}
    with pytest.raises(CorruptError, match="expected prefix or logs as what it reads, found {'suffix': 'x'}"):
        query.batch()


def asked_anew(url: str, store: ObjectStore, before: dict[str, str], after: dict[str, str]) -> Query:
    """Read what a stream is asked for first; return one that goes on from there, and is asked for something else."""
    for log in ("p/a", "p/b", "q/a"):
        fill(store, log, fragments=1)
    at = read_all(Query(url, **before))
    query = Query(url, **after)
    query.at = at
    return query


def read_all(query: Query) -> OffsetJson:
    query.batch()
    assert query.at is not None
    return query.at


def test_log_that_was_sealed_to_be_destroyed_is_an_error_at_its_end(local_url: str, local_store: ObjectStore) -> None:
    fill(local_store, "a", fragments=1)
    query, patient = Query(local_url), Query(local_url, failOnDataLoss="false")
    manifests = ManifestStore(log_store(local_store, "a"), shared_runtime())
    sealed = Seal(reason=BEING_DESTROYED, sealed_by="a test", timestamp_us=1)
    manifests.change(
        manifests.load(), lambda now: None if now.destroying else now.announce_destroy().apply_seal(sealed)
    )

    assert query.batch() == patient.batch() == of("a", range(1, 11))
    with pytest.raises(LogNotFoundError, match="being destroyed, sealed for that at offset 11") as caught:
        query.batch()
    assert "the stream is at offset 11 of it" in caught.value.__notes__[0]
    assert patient.batch() == []
    undo_destroy(local_store, "a")
    assert query.batch() == []
