"""Back-pressure: a fleet refuses appends to a log whose consumers are too far behind, and accepts them again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.spec.fleet.test_marking import wait_until
from tests.stores import CountingStore, FaultyStore, damage, life_store
from tests.world import World
from wal3_core import (
    AppendReplacedError,
    BackPressureError,
    Cleanup,
    CursorStore,
    FleetOptions,
    InvalidRequestError,
    LogPosition,
    LogWriter,
    MemoryStore,
    OverloadedError,
    Owner,
    Policy,
    PolicyStore,
    Pressure,
    RollUp,
    SealedError,
    ThreadRuntime,
    destroy,
    over_limit,
    seal,
)
from wal3_core.fleet.fleet import Fleet
from wal3_core.runtime import Observer
from wal3_core.store.object_store import ObjectStore

LIMIT = 1000
LIMITED = FleetOptions(creates=True, unprocessed_max=LIMIT)


class Later(ThreadRuntime):
    """A process whose clocks a test sets ahead by a number of seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def runtime() -> Iterator[Later]:
    with Later() as runtime:
        yield runtime


def records(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def fill(store: ObjectStore, log: str = "a", count: int = LIMIT + 1, *cursors: tuple[str, int]) -> None:
    """A log with so many records, and cursors at these offsets."""
    with LogWriter.open_or_create(store, log) as writer:
        writer.append_many(records(count))
    for name, offset in cursors:
        CursorStore(store, log).create(name, LogPosition(offset, 0))


def advance(store: ObjectStore, name: str, offset: int, log: str = "a") -> None:
    cursors = CursorStore(store, log)
    witness = cursors.load(name)
    assert witness is not None
    cursors.save(name, LogPosition(offset, 0), witness)


def press(fleet: Fleet, log: str = "a", before: int = 0) -> None:
    """Append once, and wait until the log is refused: the append itself was still accepted."""
    fleet.append(log, b"pressed")
    wait_until(lambda: fleet.stats().logs_refused == before + 1)


def refused(fleet: Fleet, log: str = "a") -> BackPressureError:
    with pytest.raises(BackPressureError) as caught:
        fleet.append(log, b"refused")
    return caught.value


def accepted_later(fleet: Fleet, runtime: Later, log: str = "a") -> None:
    """A few seconds later, an append that is refused has the log checked, and then appends are accepted."""
    runtime.ahead_s += 6
    refused(fleet, log)
    wait_until(lambda: fleet.stats().logs_refused == 0)
    fleet.append(log, b"accepted")


def test_log_over_its_limit_refuses_appends_until_its_last_consumer_has_caught_up(
    store: ObjectStore, runtime: Later
) -> None:
    fill(store, "a", LIMIT, ("slow", 1), ("quick", 900))
    with Fleet.open(store, options=LIMITED, runtime=runtime) as fleet, fleet.writer("a") as writer:
        press(fleet)

        error = refused(fleet)
        with pytest.raises(OverloadedError):
            writer.submit(b"refused", expect_next=LIMIT + 2)
        assert (error.log, error.consumer, error.unprocessed, error.limit) == ("a", "slow", LIMIT + 1, LIMIT)
        assert str(error) == (
            "log a: expected at most 1000 unprocessed records, found 1001: the consumer slow is farthest behind: wake"
            " it (`wal3 cursor list a`): the append was not begun; appends are accepted again once it has caught up"
        )
        assert (fleet.append("b", b"x").offset, fleet.stats().appends_failed) == (1, 0)

        advance(store, "slow", LIMIT + 2)
        accepted_later(fleet, runtime)
    assert World(store).manifest().next.position.offset == LIMIT + 3


def test_refused_log_is_not_checked_again_within_a_few_seconds(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    counting = CountingStore(memory_store)
    with Fleet.open(counting, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        before = counting.requests.copy()

        for _ in range(100):
            refused(fleet)
        threading.Event().wait(0.1)

        assert counting.requests == before


def test_cursor_that_is_deleted_holds_up_nothing(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT + 1, ("left", 1), ("quick", LIMIT + 2))
    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        assert refused(fleet).consumer == "left"

        CursorStore(memory_store, "a").delete("left")

        accepted_later(fleet, runtime)


def test_log_without_cursors_counts_as_unprocessed_from_its_first_record(
    memory_store: MemoryStore, runtime: Later
) -> None:
    fill(memory_store)
    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)

        error = refused(fleet)
        assert (error.consumer, error.unprocessed) == ("", LIMIT + 2)
        assert "no cursor: create its consumer's (`wal3 cursor set a NAME first`)" in str(error)

        CursorStore(memory_store, "a").create("c", LogPosition(LIMIT + 2, 0))
        accepted_later(fleet, runtime)


def test_log_whose_policy_names_no_cursors_has_the_limit_of_its_policy_alone(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store)
    policies = PolicyStore(memory_store, "a")
    policies.change(lambda policy: replace(policy, retention_s=60, without_cursors=True))
    assert over_limit(memory_store, ["a"], unprocessed_max=LIMIT) == []

    policies.change(lambda policy: replace(policy, unprocessed_max=LIMIT))

    assert [each.log for each in over_limit(memory_store, ["a"])] == ["a"]


def test_log_that_is_only_compacted_is_not_refused_for_what_it_keeps(memory_store: MemoryStore) -> None:
    fill(memory_store)
    policies = PolicyStore(memory_store, "a")

    for cleanup, over in ((Cleanup.COLLECT, 1), (Cleanup.COMPACT, 0), (Cleanup.BOTH, 1)):
        policies.change(lambda policy, cleanup=cleanup: replace(policy, cleanup=cleanup))
        assert len(over_limit(memory_store, ["a"], unprocessed_max=LIMIT)) == over, cleanup
    policies.change(lambda policy: replace(policy, cleanup=Cleanup.COMPACT, unprocessed_max=LIMIT))
    assert over_limit(memory_store, ["a"])


def test_policy_s_limit_goes_before_that_of_the_fleet(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "strict", LIMIT + 500)
    fill(memory_store, "lax", 3 * LIMIT)
    for log, limit in (("strict", LIMIT + 100), ("lax", 10 * LIMIT)):
        PolicyStore(memory_store, log).change(lambda policy, limit=limit: replace(policy, unprocessed_max=limit))
    with Fleet.open(memory_store, options=replace(LIMITED, unprocessed_max=2 * LIMIT), runtime=runtime) as fleet:
        press(fleet, "strict")
        assert refused(fleet, "strict").limit == LIMIT + 100
        for _ in range(20):
            fleet.append_many("lax", records(100))
        assert fleet.stats().logs_refused == 1


def test_policy_s_limit_holds_in_a_fleet_without_one(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT)
    counting = CountingStore(memory_store)
    with Fleet.open(counting, options=FleetOptions(), runtime=runtime) as fleet:
        fleet.append_many("a", records(10_000))
        # The log is opened by one GET; one of the manifest and one of the policy follow.
        wait_until(lambda: counting.requests["get"] == 3)
        PolicyStore(memory_store, "a").change(lambda policy: replace(policy, unprocessed_max=LIMIT))
        fleet.append_many("a", records(9_999))
        assert fleet.stats().logs_refused == 0
        press(fleet)
        assert refused(fleet).limit == LIMIT


@pytest.mark.parametrize("damaged", ["policy.json", "cursor/c.json"])
def test_check_that_fails_refuses_nothing_and_is_not_repeated_at_once(
    memory_store: MemoryStore, runtime: Later, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    fill(memory_store, "a", LIMIT, ("c", 1))
    PolicyStore(memory_store, "a").change(lambda policy: replace(policy, unprocessed_max=LIMIT))
    damage(life_store(memory_store, "a"), damaged, 40)
    counting = CountingStore(memory_store)
    with Fleet.open(counting, options=LIMITED, runtime=runtime) as fleet:
        fleet.append("a", b"1")
        wait_until(lambda: "log a: not known how far its consumers are behind" in caplog.text)
        before = counting.requests["get"]
        for _ in range(20):
            fleet.append("a", b"2")
        assert counting.requests["get"] == before


def test_check_that_ends_unexpectedly_is_repeated_later(
    memory_store: MemoryStore, runtime: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the log counted as being checked for ever, and grew without a limit."""
    fill(memory_store, "a", LIMIT, ("c", 1))
    printed = threading.Event()

    def measured(*_: object, **__: object) -> Pressure:
        raise MemoryError

    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        with monkeypatch.context() as patch:
            patch.setattr("wal3_core.fleet.dirty.back_pressure.measure", measured)
            patch.setattr("sys.excepthook", lambda *_: printed.set())
            fleet.append("a", b"1")
            assert printed.wait(30)
        runtime.ahead_s += 6
        press(fleet)
        assert refused(fleet).consumer == "c"


def test_refusal_ends_a_minute_after_the_last_check_that_succeeded(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    faulty = FaultyStore(memory_store)
    with Fleet.open(faulty, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        faulty.fail("list", "cursor/", "unavailable", times=10_000)
        runtime.ahead_s = 30
        refused(fleet)
        wait_until(lambda: faulty.fired["unavailable"] == 1)
        refused(fleet)

        runtime.ahead_s = 61

        assert fleet.stats().logs_refused == 0
        fleet.append("a", b"accepted")
        faulty.heal()
        runtime.ahead_s = 70
        press(fleet)


def test_log_that_is_closed_for_others_stays_refused_and_is_not_opened_for_a_refusal(
    memory_store: MemoryStore, runtime: Later
) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    with Fleet.open(memory_store, options=replace(LIMITED, logs_open_max=1), runtime=runtime) as fleet:
        press(fleet)
        for number in range(3):
            fleet.append(f"other{number}", b"x")
            opened = fleet.stats().logs_opened
            refused(fleet)
            assert fleet.stats().logs_opened == opened


def test_records_count_over_several_openings_of_their_log(memory_store: MemoryStore, runtime: Later) -> None:
    with Fleet.open(memory_store, options=replace(LIMITED, logs_open_max=1), runtime=runtime) as fleet:
        for number in range(6):
            fleet.append_many("a", records(200))
            fleet.append("other", b"%d" % number)
        wait_until(lambda: fleet.stats().logs_refused == 1)


def test_first_append_to_a_long_log_has_it_checked(memory_store: MemoryStore) -> None:
    fill(memory_store)
    for _ in range(2):
        with Fleet.open(memory_store, options=LIMITED) as fleet:
            press(fleet)
            refused(fleet)


def test_log_that_another_fleet_has_filled_is_refused(memory_store: MemoryStore) -> None:
    with Fleet.open(memory_store, options=LIMITED) as one, Fleet.open(memory_store, options=LIMITED) as other:
        for _ in range(2):
            one.append_many("a", records(400))
            other.append_many("a", records(400))
        wait_until(lambda: one.stats().logs_refused == other.stats().logs_refused == 1)


def test_appends_cost_no_more_requests_while_a_log_is_short(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 100)
    counting = CountingStore(memory_store)
    with Fleet.open(counting, options=LIMITED) as fleet:
        for number in range(100):
            fleet.append("a", b"%d" % number)
    # The log is opened by one GET.
    assert (counting.requests["get"], counting.requests["list"]) == (1, 0)


def test_log_is_checked_once_for_a_quarter_of_its_limit_and_its_cursors_near_it(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", 100, ("c", 1))
    counting = CountingStore(memory_store)
    options = replace(LIMITED, unprocessed_max=4 * LIMIT)
    with Fleet.open(counting, options=options) as fleet:
        for number in range(1, 4):
            fleet.append_many("a", records(500))
            fleet.append_many("a", records(500))
            # One GET of the manifest and one of the policy.
            wait_until(lambda number=number: counting.requests["get"] == 1 + 2 * number)
        assert counting.requests["list"] == 0
        for _ in range(2):
            fleet.append_many("a", records(500))
        wait_until(lambda: counting.requests["list"] == 1)


def test_log_that_was_created_again_is_not_refused_for_the_one_before(
    memory_store: MemoryStore, runtime: Later
) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        destroy(memory_store, "a")
        LogWriter.create(memory_store, "a")

        runtime.ahead_s = 6
        refused(fleet)
        wait_until(lambda: fleet.stats().logs_refused == 0)

        with pytest.raises(AppendReplacedError):
            fleet.append("a", b"lost")
        assert fleet.append("a", b"new").offset == 1


def test_log_that_was_destroyed_is_refused_no_longer(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        destroy(memory_store, "a")

        runtime.ahead_s = 6
        refused(fleet)
        wait_until(lambda: fleet.stats().logs_refused == 0)


def test_sealed_log_is_refused_for_its_seal(memory_store: MemoryStore, runtime: Later) -> None:
    fill(memory_store, "a", LIMIT, ("slow", 1))
    with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
        press(fleet)
        seal(memory_store, "a", reason="over")

        runtime.ahead_s = 6
        refused(fleet)
        wait_until(lambda: fleet.stats().logs_refused == 0)

        with pytest.raises(SealedError):
            fleet.append("a", b"x")


def test_refused_appends_are_reported(memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Listener(Observer):
        def refused(self, log: str) -> None:
            seen.append(log)

    fill(memory_store, "a", LIMIT, ("slow", 1))
    with Later() as runtime:
        runtime.observer = Listener()
        with Fleet.open(memory_store, options=LIMITED, runtime=runtime) as fleet:
            press(fleet)
            refused(fleet)
            refused(fleet)
    assert seen == ["a", "a"]
    assert "appends are refused: log a: expected at most 1000" in caplog.text


@pytest.mark.parametrize("owner", [Owner.WRITER, Owner.ROLLUP, Owner.QUEUE])
def test_cursor_of_what_does_not_consume_holds_up_no_append(memory_store: MemoryStore, owner: Owner) -> None:
    """A log whose consumers have read everything was refused for a writer's last named append."""
    fill(memory_store, "a", LIMIT + 1, ("billing", LIMIT + 2))
    CursorStore(memory_store, "a").create("writer-nightly", LogPosition(1, 0), owner=Owner.WRITER)
    if owner is not Owner.WRITER:
        CursorStore(memory_store, "a").create("other", LogPosition(1, 0), owner=owner)

    assert over_limit(memory_store, ["a"], unprocessed_max=LIMIT) == []


def test_over_limit_returns_logs_with_too_many_unprocessed_the_farthest_first(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", 1500, ("c", 200), ("d", 100))
    fill(memory_store, "b", 1500, ("c", 600))
    fill(memory_store, "short", 10)

    found = over_limit(memory_store, ["b", "short", "a", "gone"], unprocessed_max=LIMIT)

    assert found == [Pressure(log="a", consumer="d", processed=100, next=1501, limit=LIMIT)]
    assert (found[0].unprocessed, found[0].over) == (1401, True)
    assert over_limit(memory_store, ["a", "b"]) == []


def test_over_limit_takes_what_a_roll_up_has_found(memory_store: MemoryStore) -> None:
    with Fleet.open(memory_store, server="s", options=FleetOptions(creates=True)) as fleet:
        fleet.append_many("a", records(1500))
        fleet.append_many("b", records(10))
    plan = RollUp(memory_store, "dirty/s").read()

    assert [each.log for each in over_limit(memory_store, plan.dirty, unprocessed_max=LIMIT)] == ["a"]


@pytest.mark.parametrize("limit", [0, 999, -1])
def test_limit_below_a_thousand_is_refused(memory_store: MemoryStore, limit: int) -> None:
    with pytest.raises(InvalidRequestError, match="1000"):
        FleetOptions(unprocessed_max=limit)
    with pytest.raises(InvalidRequestError, match="1000"):
        Policy(unprocessed_max=limit).check()
    with pytest.raises(InvalidRequestError, match="1000"):
        over_limit(memory_store, [], unprocessed_max=limit)
