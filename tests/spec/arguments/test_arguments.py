"""A wrong argument is refused by name before anything is done with it.

The calls are made from the signatures of everything in ``wal3_core.__all__``: an entry without a check fails here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np
import pytest

import wal3_core
from tests.exported import IN_SIGNATURES
from tests.spec.argument_kinds import LOG, kind_of, kinds
from tests.stores import CountingStore, content
from wal3_core import (
    AtTime,
    Collector,
    Consumer,
    CursorStore,
    DelayQueue,
    Deleter,
    DirtyLog,
    FeedReader,
    FeedSubscription,
    FeedWriter,
    Fleet,
    InvalidRequestError,
    KeyedLog,
    Limits,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    PinStore,
    Policy,
    PolicyStore,
    Setsum,
    SnapshotCompactor,
    Witness,
    collect,
    copy,
    destroy,
    list_logs,
    open_store,
    records_across,
    scrub,
    seal,
)
from wal3_core.arguments import SECONDS_MAX, checked, integer, seconds, text
from wal3_core.format.position import FragmentSeqNo
from wal3_core.options import (
    RetryOptions,
    WriterOptions,
)
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

LIMIT_S = 30
# Many cases: some seconds.
pytestmark = pytest.mark.slow

# The library constructs these, or they are opened by class methods; callers never construct them.
MADE_INSIDE = {
    "BootstrapReport",
    "CollectionReport",
    "CompactionLimits",
    "ConsumedRecord",
    "CopyReport",
    "CopyUpdateReport",
    "DestroyPlan",
    "DirtyLog",
    "Delivery",
    "FeedMessage",
    "FeedReader",
    "FeedSubscription",
    "Gap",
    "FeedWriter",
    "Fleet",
    "FinishedRollUp",
    "FleetStats",
    "HeldWriter",
    "KeyCount",
    "KeyedConsumer",
    "KeyedLog",
    "KeyedScan",
    "Lag",
    "LogWriter",
    "Pin",
    "Plan",
    "Pressure",
    "Record",
    "RepairReport",
    "ResumeReport",
    "ScrubReport",
    "Seal",
    "StoredFile",
    "WriterStats",
}
MADE_INSIDE |= {"Stray", "SubscriptionInfo"}
MADE_INSIDE |= {"DelayQueue", "Enqueued", "ItemStats", "Leased", "Peeked", "QueueRepair", "QueueStats"}
# A Setsum is constructed at every step; from outside data it is made by its class methods alone.
MADE_INSIDE |= {"Setsum"}
# They store nothing of what they are given, and lose nothing: a wrong type fails where it is used.
UNCHECKED = {
    "LogReader",
    "SnapshotCompactor",
    "follow_across",
    "open_pinned",
    "pinned_records",
    "records_across",
    "scrub",
}
# Of these, the parameters that are neither stored nor decide what is lost.
UNCHECKED_PARAMETERS = {
    "Consumer": {"options", "runtime", "store"},
    "bootstrap": {"runtime"},
    "collect": {"progress"},
    "copy": {"runtime", "source", "target"},
    "repair_log": {"copy", "log", "runtime"},
    "seal": {"runtime"},
    "update_copy": {"runtime", "source", "target"},
}
# They convert between values and stored bytes; malformed bytes have tests of their own.
CODEC = {"check_stored", "to_json", "from_json", "from_fields", "to_bytes", "from_bytes"}


OPENED: list[DelayQueue] = []


def opened(queue: DelayQueue) -> DelayQueue:
    """A queue that is closed at the end: it has threads."""
    OPENED.append(queue)
    return queue


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


@dataclass(frozen=True)
class Entry:
    name: str
    of: str
    method: str | None

    def call(self, store: ObjectStore) -> Callable[..., object]:
        found = getattr(wal3_core, self.of)
        if self.method is None:
            return found
        made: dict[str, Callable[[], object]] = {
            "Consumer": lambda: Consumer(store, LOG, "c"),
            "LogWriter": lambda: LogWriter.open(store, LOG),
            "FeedReader": lambda: FeedReader.open(store, LOG),
            "FeedSubscription": lambda: FeedSubscription.open(store, LOG, "s"),
            "FeedWriter": lambda: FeedWriter.open(store, LOG),
            "DirtyLog": lambda: DirtyLog.open_or_create(store, "s"),
            "DelayQueue": lambda: opened(DelayQueue.open_or_create(store, "q")),
            "Fleet": lambda: Fleet.open(store),
            "KeyedLog": lambda: KeyedLog.open(store, LOG),
            "KeyedConsumer": lambda: KeyedLog.open(store, LOG).consumer("k"),
            "HeldWriter": lambda: Fleet.open(store).writer(LOG),
            "Limits": Limits,
            "Setsum": Setsum,
        }
        bound = inspect.ismethod(getattr(found, self.method))
        of = found if bound else made.get(self.of, lambda: found(store, LOG))()
        return getattr(of, self.method)


def entries() -> Iterator[Entry]:
    for name in sorted({*wal3_core.__all__} - IN_SIGNATURES - UNCHECKED):
        found = getattr(wal3_core, name)
        if not isinstance(found, type):
            yield Entry(name, name, None)
        elif not issubclass(found, Exception | Enum):
            if name not in MADE_INSIDE:
                yield Entry(name, name, None)
            public = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name))]
            for method in public:
                takes = [
                    each for each in inspect.signature(getattr(found, method)).parameters if each not in {"self", "cls"}
                ]
                if takes and method not in CODEC:
                    yield Entry(f"{name}.{method}", name, method)


def refused(call: Callable[..., object], given: dict[str, object], name: str) -> bool:
    try:
        answer = call(**given)
        if inspect.isasyncgen(answer):
            answer = anext(answer)
        if inspect.isawaitable(answer):
            asyncio.run(_awaited(answer))
    except InvalidRequestError as error:
        return name in str(error)
    return False


async def _awaited(answer: Awaitable[object]) -> None:
    await asyncio.wait_for(answer, LIMIT_S)


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in entries()])
def test_wrong_type_is_refused_by_name_and_changes_nothing(memory_store: MemoryStore, entry: Entry) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append(b"x")
    CursorStore(memory_store, LOG).create("c", LogPosition(1, 0))
    call = entry.call(memory_store)
    before, known = content(memory_store), kinds()
    unchecked = UNCHECKED_PARAMETERS.get(entry.name, set())
    parameters = inspect.signature(call).parameters.values()
    wanted = {each.name: kind_of(each, known) for each in parameters if each.name not in unchecked}
    right = {name: memory_store if name == "store" else kind.right for name, kind in wanted.items()}

    for name, kind in wanted.items():
        for wrong in kind.wrong:
            assert refused(call, right | {name: wrong}, name), f"{name}: {wrong!r}"
            assert content(memory_store) == before, f"{name}: {wrong!r}"


def test_every_entry_is_called() -> None:
    names = {entry.name for entry in entries()}

    assert {
        "seal",
        "collect",
        "LogWriter.append_many",
        "LogWriter.append_table",
        "CursorStore.save",
        "Deleter.look",
    } <= names
    assert len(names) > 60


# ---------------------------------------------------------------------- integers and bytes of other types


def test_integers_of_any_type_are_accepted_and_stored_as_plain_ones(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append_many([b"1", b"2", b"3"])
    position = LogPosition(np.uint64(3), np.int64(0))

    CursorStore(memory_store, LOG).create("c", position)

    assert (type(position.offset), type(position.timestamp_us)) == (int, int)
    found = CursorStore(memory_store, LOG).load("c")
    assert found is not None
    assert found.cursor.position == LogPosition(3, 0)
    limits = Limits(records=np.uint8(1))
    reader = LogReader.open(memory_store, LOG)
    assert [each.body for each in reader.records(np.int32(2), limits)] == [b"2"]
    assert [each.body for each in records_across(memory_store, LOG, np.uint64(3))] == [b"3"]
    assert next(reader.records(AtTime(np.uint64(0)))).offset == 1
    policy = PolicyStore(memory_store, LOG).change(lambda _: Policy(retention_s=np.int64(60)))
    assert type(policy.retention_s) is int
    assert type(WriterOptions(uploads_max=np.int8(3)).uploads_max) is int
    assert collect(memory_store, LOG, limit_offset=np.uint64(1)).plan.empty
    target = LogAt(memory_store, "t")
    assert copy(LogAt(memory_store, LOG), target, from_offset=np.uint16(1)).num_records == 3


@pytest.mark.parametrize("wrong", [1.5, "3", None, True, np.float64(3), np.bool_(1), np.array([1, 2])])
def test_non_integer_is_refused_as_an_offset(wrong: object) -> None:
    with pytest.raises(InvalidRequestError, match="offset: expected an integer"):
        LogPosition(wrong, 0)
    with pytest.raises(InvalidRequestError, match="timestamp_us: expected an integer"):
        LogPosition(3, wrong)


def test_buffers_are_appended_as_they_were_when_passed_in(memory_store: MemoryStore) -> None:
    """A caller may read from a socket into one buffer repeatedly."""
    buffer = bytearray(b"first")
    everyother = memoryview(b"a-b-c-")[::2]
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        futures = [writer.submit(buffer)]
        buffer[:] = b"other"
        futures.append(writer.submit(memoryview(buffer)))
        buffer[:] = b"third"
        futures.append(writer.submit_many([Message(None, buffer), everyother, b"plain"]))
        buffer[:] = b"-----"
        for future in futures:
            shared_runtime().wait(future, 30)

    found = [(record.key, record.body) for record in LogReader.open(memory_store, LOG).records()]
    assert found == [(None, b"first"), (None, b"other"), (b"third", None), (None, b"abc"), (None, b"plain")]


# ---------------------------------------------------------------------- names


def test_part_of_a_log_s_name_that_no_file_system_accepts_is_refused_by_name(store: ObjectStore) -> None:
    longest = f"{'p' * 255}/{'q' * 244}"
    LogWriter.create(store, longest)
    with LogWriter.open(store, longest) as writer:
        writer.append(b"x")
    assert list(list_logs(store)) == [longest]

    for entry in (LogWriter.create, LogWriter.open, LogReader.open, CursorStore, PinStore, collect, destroy, scrub):
        with pytest.raises(InvalidRequestError, match="log name .*parts of at most 255 bytes.*found one of 256"):
            entry(store, f"team/{'p' * 256}")

    with pytest.raises(InvalidRequestError, match="successor name .*at most 255 bytes"):
        seal(store, longest, reason="full", successor="p" * 256)
    assert LogReader.open(store, longest).manifest().seal is None


def test_name_of_a_cursor_or_pin_that_no_file_system_accepts_is_refused_by_name(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")
    CursorStore(store, LOG).create("c" * 200, LogPosition(1, 0))
    PinStore(store, LOG).create("p" * 200, reason="r")

    with pytest.raises(InvalidRequestError, match="cursor name: expected .* at most 200 bytes, found 251"):
        CursorStore(store, LOG).create("c" * 251, LogPosition(1, 0))
    with pytest.raises(InvalidRequestError, match="pin name: expected .* at most 200 bytes, found 251"):
        PinStore(store, LOG).create("p" * 251, reason="r")


# ---------------------------------------------------------------------- symptoms


def test_seal_by_a_number_is_refused_and_the_log_stays_readable(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")

    with pytest.raises(InvalidRequestError, match="sealed_by: expected text, found int 4711"):
        seal(store, LOG, reason="r", sealed_by=4711)

    assert [record.body for record in LogReader.open(store, LOG).records()] == [b"x"]


def test_generators_check_their_arguments_when_they_are_called(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        writer.append(b"x")
    counting = CountingStore(memory_store)

    with pytest.raises(InvalidRequestError, match="plan"):
        Collector(counting, LOG).objects(5)

    assert not counting.requests


def test_check_of_a_missing_parameter_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="expected checks of"):
        checked(offset=integer)(lambda place: place)


def test_incomparable_time_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="idle_s: expected a number of seconds"):
        seconds(float("nan"), "idle_s")
    assert seconds(np.float32(0.5), "idle_s") == 0.5


def test_values_of_the_wrong_type_are_refused_where_they_are_made() -> None:
    with pytest.raises(InvalidRequestError, match="store: expected a store"):
        LogAt("memory:a", LOG)
    with pytest.raises(InvalidRequestError, match="cursor: expected Cursor"):
        Witness(None, "e")
    with pytest.raises(InvalidRequestError, match="url: expected text"):
        open_store(b"memory:a")
    assert FragmentSeqNo(3) == 3
    assert isinstance(PinStore(MemoryStore(shared_runtime()), LOG), PinStore)
    assert isinstance(Deleter(MemoryStore(shared_runtime()), LOG), Deleter)
    assert isinstance(SnapshotCompactor(MemoryStore(shared_runtime()), LOG), SnapshotCompactor)


class Names(str, Enum):  # noqa: UP042 - a StrEnum is formatted as what it stands for
    """Its members are formatted as ``Names.LOG`` and so on, which are not valid log names."""

    LOG = "orders"
    SUCCESSOR = "orders-2"
    CURSOR = "main"
    PIN = "audit"


def test_member_of_an_enum_is_used_as_its_value(store: ObjectStore) -> None:
    with LogWriter.open_or_create(store, Names.LOG) as writer:
        writer.append(b"x")
    CursorStore(store, Names.LOG).create(Names.CURSOR, LogPosition(1, 0))
    PinStore(store, Names.LOG).create(Names.PIN, reason=Names.PIN)
    seal(store, Names.LOG, reason=Names.PIN, successor=Names.SUCCESSOR)

    assert list(list_logs(store)) == ["orders"]
    assert [record.body for record in LogReader.open(store, "orders").records()] == [b"x"]
    assert list(CursorStore(store, "orders").list()) == ["main"]
    assert list(PinStore(store, "orders").list()) == ["audit"]
    sealed = LogReader.open(store, "orders").manifest().seal
    assert sealed is not None
    assert (sealed.reason, sealed.successor) == ("audit", "orders-2")
    assert type(text(Names.LOG, "name")) is str


# ---------------------------------------------------------------------- amounts


@pytest.mark.parametrize("endless", [float("inf"), 10**12, np.float64(1e300)])
def test_infinite_time_counts_as_ten_years(endless: float) -> None:
    assert seconds(endless, "timeout_s") == SECONDS_MAX


@pytest.mark.parametrize("wrong", [Fraction(10**400), 10**400, 10**10_000], ids=["fraction", "digits", "unwritten"])
def test_time_that_no_float_can_represent_is_refused(memory_store: MemoryStore, wrong: float) -> None:
    with LogWriter.open_or_create(memory_store, LOG) as writer:
        with pytest.raises(InvalidRequestError, match="timeout_s: expected a number"):
            writer.submit(b"x", timeout_s=wrong)
        with pytest.raises(InvalidRequestError, match="idle_s: expected a number"):
            LogReader.open(memory_store, LOG).follow(idle_s=wrong)
        with pytest.raises(InvalidRequestError, match="timeout_s: expected a number"):
            RetryOptions(timeout_s=wrong)


def test_endless_records_are_refused_at_the_first_one_too_many(memory_store: MemoryStore) -> None:
    taken = 0

    def records() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x"

    with (
        LogWriter.open_or_create(memory_store, LOG, options=WriterOptions(batch_records_max=10)) as writer,
        pytest.raises(InvalidRequestError, match="expected at most .* 10 records .* found at least .* 11 records"),
    ):
        writer.append_many(records())

    assert taken == 11
