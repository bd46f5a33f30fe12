"""The shape of an exercise's load, the ledgers of its processes, and what they add up to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.exercise.ledger import Append, AppendOutcome, EndSeen, Ledger, Problem, ReadRecord, read_part
from wal3_core.exercise.load import LoadShape
from wal3_core.exercise.report import Checked, Figures, Histogram, Summary, price_usd

LIMIT = 2**24
LOAD = LoadShape(seed=7, rate_per_s=300, logs=24, processes=3, body_bytes_max=LIMIT, bytes_per_s=2**20)


def test_load_has_bursts_and_idle_spells_and_its_rate_on_average() -> None:
    rates = [LOAD.rate_at(tenth / 10) * LOAD.processes for tenth in range(100_000)]

    assert min(rates) == 0
    assert max(rates) == 5 * 300
    assert 0.8 * 300 < sum(rates) / len(rates) < 1.2 * 300


def test_records_have_from_one_byte_to_the_limit_and_are_mostly_small() -> None:
    sizes = [LOAD.choice(0, 0, number, bytes_left=2**30).num_bytes for number in range(20_000)]

    assert (min(sizes), max(sizes)) == (1, LIMIT)
    assert sum(size <= 1024 for size in sizes) > 0.9 * len(sizes)
    assert all(LOAD.choice(0, 0, number, bytes_left=0).num_bytes <= 1024 for number in range(20_000))


def test_log_belongs_to_one_process_or_to_all() -> None:
    chosen = [{LOAD.choice(process, 0, n, bytes_left=0).log for n in range(5000)} for process in range(3)]

    assert chosen[0] & chosen[1] == chosen[1] & chosen[2] == {21, 22, 23}
    assert set.union(*chosen) == set(range(24))


def test_load_depends_on_its_seed_alone() -> None:
    again, other = (
        LoadShape(seed=seed, rate_per_s=300, logs=24, processes=3, body_bytes_max=LIMIT, bytes_per_s=2**20)
        for seed in (7, 8)
    )

    def shape(load: LoadShape) -> list[object]:
        choices = [load.choice(1, 2, number, bytes_left=2**20) for number in range(50)]
        return [*choices, *(load.rate_at(at_s) for at_s in range(50)), load.life(1, 2, kills=True)]

    assert shape(LOAD) == shape(again)
    assert shape(LOAD) != shape(other)


def test_first_life_of_a_process_ends_by_a_kill_unless_there_are_none() -> None:
    assert LOAD.life(0, 0, kills=True).killed
    assert not LOAD.life(0, 0, kills=False).killed
    assert LOAD.life(0, 0, kills=True).seconds <= 4


def test_ledger_gives_back_what_was_noted_and_drops_a_line_cut_short(tmp_path: Path) -> None:
    durable = Append(
        process="p00.0",
        number=1,
        num_bytes=3,
        checksum="ab",
        submitted_us=5,
        expect_next=9,
        outcome=AppendOutcome.DURABLE,
        offset=9,
        answered_us=6,
    )
    pending = Append(process="p00.0", number=2, num_bytes=3, checksum="cd", submitted_us=7)
    found = ReadRecord(offset=9, key=durable.key("run"), num_bytes=3, checksum="ab", seen_us=8)
    ledger = Ledger(tmp_path, "p00.0")
    ledger.note("log-0001", durable)
    ledger.note("log-0001", pending)
    ledger.note("log-0001", durable)
    ledger.note("log-0001", found)
    ledger.note("log-0001", EndSeen(began_us=10, next_offset=11))
    ledger.note("log-0017", Problem("a fragment\n\tis gone"))
    with (tmp_path / "p00.0.01").open("ab") as file:
        file.write(b'["log-0001", "Append", "p00.0", 3')

    logs = read_part(tmp_path, 1)

    assert set(logs) == {"log-0001", "log-0017"}
    assert logs["log-0001"].appends == [durable, pending]
    assert (logs["log-0001"].found, logs["log-0001"].ends) == ([found], [EndSeen(began_us=10, next_offset=11)])
    assert logs["log-0017"].problems == ["a fragment\n\tis gone"]


@given(durations_s=st.lists(st.floats(0.001, 1000), min_size=1), share=st.floats(0.01, 1))
def test_percentile_is_at_most_two_percent_too_large(durations_s: list[float], share: float) -> None:
    histogram = Histogram()
    for duration_s in durations_s:
        histogram.add(duration_s)

    found = histogram.percentile(share)

    exact = next(
        each for each in sorted(durations_s) if sum(s <= each for s in durations_s) >= share * len(durations_s)
    )
    assert exact * 0.999999 <= found <= exact * 1.020001


def test_price_is_that_of_the_list() -> None:
    assert round(price_usd({"create": 1000, "replace": 1000, "list": 1000, "get": 1000, "delete": 1000}), 6) == 0.0154


@pytest.mark.parametrize(
    ("durable", "expected"), [(500, {"requests": 4_000_000, "price_usd_estimate": 10.8}), (0, None)]
)
def test_price_of_a_million_appends_is_that_of_the_durable_ones(
    durable: int, expected: dict[str, float] | None
) -> None:
    summary = Summary(
        run="r",
        store="s",
        seed=1,
        logs=1,
        load_s=1.0,
        checked=Checked(outcomes=Counter({AppendOutcome.DURABLE: durable, AppendOutcome.UNKNOWN: 7})),
        figures=Figures(requests=Counter({"create": 1000, "get": 1000})),
        kept=(),
    )

    assert summary.to_json()["per_million_appends"] == expected
