"""The checker of an exercise: nothing is wrong with a right history, and each wrong record is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from wal3_core.exercise.ledger import (
    Append,
    AppendOutcome,
    EndSeen,
    LogLedger,
    ReadRecord,
    Violation,
    ViolationKind,
    check_log,
)

from .histories import LATE_US, LOG, RUN, acknowledged, found_of, history, steps

if TYPE_CHECKING:
    from .histories import Step

    # Makes a ledger wrong at one acknowledged append; names the kind, the offset and the record to be found.
    Plant = Callable[[LogLedger, Append], tuple[LogLedger, tuple[ViolationKind, int, str]]]


def findings(ledger: LogLedger) -> list[Violation]:
    return check_log(RUN, LOG, ledger, late_us=LATE_US)


def named(append: Append) -> str:
    return f"{append.process}/{append.number}"


def changed(ledger: LogLedger, append: Append, *with_found: ReadRecord) -> LogLedger:
    """Return a ledger with other records in place of the one of an append."""
    others = [each for each in ledger.found if each.offset != append.offset]
    return LogLedger(ledger.appends, [*others, *with_found], ledger.ends, ledger.problems)


def lose(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    return changed(ledger, append), (ViolationKind.MISSING, append.offset, named(append))


def alter_body(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    found = replace(found_of(append, append.offset), checksum="f" * 16)
    return changed(ledger, append, found), (ViolationKind.ALTERED, append.offset, named(append))


def alter_length(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    found = replace(found_of(append, append.offset), num_bytes=append.num_bytes - 1)
    return changed(ledger, append, found), (ViolationKind.ALTERED, append.offset, named(append))


def alter_time_in_key(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    found = replace(found_of(append, append.offset), key=f"{append.key(RUN)}0")
    return changed(ledger, append, found), (ViolationKind.ALTERED, append.offset, named(append))


def alter_name_in_key(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    found = replace(found_of(append, append.offset), key="\\xff")
    return changed(ledger, append, found), (ViolationKind.ALTERED, append.offset, named(append))


def read_as_another(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    """Read at its offset, besides it, a record that may be in the log."""
    other = replace(append, number=1000, outcome=AppendOutcome.PENDING, offset=0)
    both = found_of(append, append.offset), found_of(other, append.offset)
    wrong = changed(ledger, append, *both)
    wrong.appends.append(other)
    return wrong, (ViolationKind.ALTERED, append.offset, named(append))


def double(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    offset = len(ledger.found) + 1
    both = found_of(append, append.offset), found_of(append, offset)
    return changed(ledger, append, *both), (ViolationKind.DOUBLED, offset, named(append))


def move(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    found = found_of(append, len(ledger.found) + 1)
    return changed(ledger, append, found), (ViolationKind.MISPLACED, append.offset, named(append))


def meet_another_condition(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    appends = [replace(each, expect_next=each.offset + 1) if each == append else each for each in ledger.appends]
    wrong = LogLedger(appends, ledger.found, ledger.ends, [])
    return wrong, (ViolationKind.MISPLACED, append.offset, named(append))


def refuse(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    refused = replace(append, outcome=AppendOutcome.NOT_DURABLE)
    appends = [refused if each == append else each for each in ledger.appends]
    wrong = LogLedger(appends, ledger.found, ledger.ends, [])
    return wrong, (ViolationKind.UNWANTED, append.offset, named(append))


def add_foreign(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    offset = len(ledger.found) + 1
    foreign = replace(found_of(append, offset), key=append.key("run-20250101T120000Z-a1b2c3"))
    return changed(ledger, append, found_of(append, append.offset), foreign), (ViolationKind.FOREIGN, offset, "")


def look_stale(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    """Look when it was just acknowledged, and see none of the log from it on."""
    look = EndSeen(began_us=append.answered_us + 1, next_offset=append.offset)
    known = [each for each in acknowledged(ledger) if each.answered_us < look.began_us]
    newest = max(known, key=lambda each: each.offset)
    wrong = LogLedger(ledger.appends, ledger.found, [*ledger.ends, look], [])
    return wrong, (ViolationKind.STALE, newest.offset, named(newest))


def lose_after_it_was_seen(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    seen = replace(found_of(append, append.offset), seen_us=append.answered_us + 1)
    return changed(ledger, append, seen), (ViolationKind.MISSING, append.offset, named(append))


def see_late(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    seen = replace(found_of(append, append.offset), seen_us=append.answered_us + LATE_US + 1)
    return changed(ledger, append, found_of(append, append.offset), seen), (
        ViolationKind.LATE,
        append.offset,
        named(append),
    )


def find_unsound(ledger: LogLedger, append: Append) -> tuple[LogLedger, tuple[ViolationKind, int, str]]:
    return LogLedger(ledger.appends, ledger.found, ledger.ends, [f"fragment {append.offset} is gone"]), (
        ViolationKind.UNSOUND,
        0,
        "",
    )


PLANTS: list[Plant] = [
    lose,
    alter_body,
    alter_length,
    alter_time_in_key,
    alter_name_in_key,
    read_as_another,
    double,
    move,
    meet_another_condition,
    refuse,
    add_foreign,
    look_stale,
    lose_after_it_was_seen,
    see_late,
    find_unsound,
]


# Two at once: the one that began last lies first.
CONCURRENT = [("submit", "p00.0"), ("submit", "p01.0"), ("commit", "p01.0"), ("commit", "p00.0")]


@example(taken=[*CONCURRENT, ("answer", "p00.0"), ("answer", "p01.0")])
@given(taken=steps)
def test_nothing_is_wrong_with_a_log_that_keeps_every_promise(taken: list[Step]) -> None:
    assert findings(history(taken)) == []


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
@given(taken=steps, data=st.data())
def test_each_wrong_record_is_found_and_named(plant: Plant, taken: list[Step], data: st.DataObject) -> None:
    ledger = history([*taken, ("submit", "p00.0"), ("commit", "p00.0"), ("answer", "p00.0")])
    candidates = acknowledged(ledger)
    # The last steps may have acknowledged an older append of that process, or refused it.
    assume(candidates)

    wrong, expected = plant(ledger, data.draw(st.sampled_from(candidates)))

    found = findings(wrong)
    assert expected in [(each.kind, each.offset, each.record) for each in found]
    assert {each.log for each in found} == {LOG}


def swapped(ledger: LogLedger, one: Append, other: Append) -> LogLedger:
    """Exchange two appends' places, in the log and in their acknowledgements."""
    offsets = {(one.process, one.number): other.offset, (other.process, other.number): one.offset}
    appends = [replace(each, offset=offsets.get((each.process, each.number), each.offset)) for each in ledger.appends]
    records = {one.offset: found_of(other, one.offset), other.offset: found_of(one, other.offset)}
    return LogLedger(appends, [records.get(each.offset, each) for each in ledger.found], [], [])


@given(taken=steps, data=st.data())
def test_append_before_one_acknowledged_before_it_began_is_reordered(taken: list[Step], data: st.DataObject) -> None:
    ledger = history([*taken, *((what, p) for p in ("p00.0", "p01.0") for what in ("submit", "commit", "answer"))])
    done = acknowledged(ledger)
    pairs = [(a, b) for a in done for b in done if a.answered_us < b.submitted_us]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))

    found = findings(swapped(ledger, one, other))

    assert (ViolationKind.REORDERED, one.offset, named(other)) in [
        (each.kind, each.offset, each.record) for each in found
    ]


@given(taken=steps, data=st.data())
def test_appends_of_a_process_out_of_the_order_of_their_submission_are_reordered(
    taken: list[Step], data: st.DataObject
) -> None:
    ledger = history(
        [*taken, *((what, "p00.0") for what in ("submit", "submit", "commit", "commit", "answer", "answer"))]
    )
    done = acknowledged(ledger)
    pairs = [(a, b) for a, b in pairwise(done) if a.process == b.process]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))

    found = findings(swapped(ledger, one, other))

    assert (ViolationKind.REORDERED, one.offset, named(other)) in [
        (each.kind, each.offset, each.record) for each in found
    ]


@given(taken=steps)
def test_records_that_were_seen_and_then_collected_are_not_missing(taken: list[Step]) -> None:
    ledger = history(taken)
    middle = len(ledger.found) // 2 + 1
    found = [replace(each, seen_us=1) if each.offset < middle else each for each in ledger.found]
    collected = replace(ledger, found=found, kept_from=middle)

    assert [each.kind for each in findings(collected) if each.kind is not ViolationKind.LATE] == []


@given(taken=steps)
def test_record_of_a_killed_process_may_be_in_the_log_or_not(taken: list[Step]) -> None:
    ledger = history(taken)
    pending = {
        each.key(RUN) for each in ledger.appends if each.outcome in {AppendOutcome.PENDING, AppendOutcome.UNKNOWN}
    }
    without = LogLedger(ledger.appends, [each for each in ledger.found if each.key not in pending], ledger.ends, [])

    assert findings(without) == []
