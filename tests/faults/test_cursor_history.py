"""Answers that agree with the store's order pass, and no others."""

from __future__ import annotations

import pytest

from tests.faults.cursor_history import CursorHistory, Load, Move, Outcome
from tests.stores import LOG_ID
from wal3_core import LogPosition
from wal3_core.model.cursor import Cursor


def version(number: int) -> Cursor:
    return Cursor(
        position=LogPosition(number, 0), epoch_us=0, writer=f"hand {number}", generation=number, log_id=LOG_ID
    )


ONE, TWO, THREE = version(1), version(2), version(3)


def move(
    expected: Cursor | None,
    *sent: Cursor,
    since: int = 0,
    until: int | None = 1,
    outcome: Outcome = "done",
    ambiguous: bool = False,
) -> Move:
    data = [cursor.to_bytes() for cursor in sent]
    return Move(expected, data, since, until=until, outcome=outcome, ambiguous=ambiguous)


def check(landed: list[Cursor], *answers: Load | Move) -> None:
    loads = [answer for answer in answers if isinstance(answer, Load)]
    moves = [answer for answer in answers if isinstance(answer, Move)]
    CursorHistory([None, *landed], loads, moves).check()


def test_what_was_there_at_some_time_meanwhile_may_be_loaded_and_nothing_else() -> None:
    check([ONE], move(None, ONE), Load(None, [None, ONE]), Load(ONE, [None, ONE]))

    with pytest.raises(AssertionError, match="was not there"):
        check([ONE], move(None, ONE), Load(None, [ONE]))


def test_move_told_to_be_done_landed_while_it_lasted_and_on_what_it_saw() -> None:
    check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2))

    with pytest.raises(AssertionError, match="was not"):
        check([], move(None, ONE, until=0))
    with pytest.raises(AssertionError, match="was not"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=0, until=1))
    with pytest.raises(AssertionError, match="was not"):
        check([ONE, TWO, THREE], move(None, ONE), move(ONE, TWO, until=2), move(ONE, THREE, since=1, until=3))


def test_version_that_landed_on_another_than_it_was_sent_for_is_found_whatever_was_told() -> None:
    late = move(ONE, THREE, until=None, outcome="pending")
    check([ONE, THREE], move(None, ONE), late)

    with pytest.raises(AssertionError, match="another version"):
        check([ONE, TWO, THREE], move(None, ONE), move(ONE, TWO, until=2), late)


def test_version_that_nobody_sent_and_one_that_comes_back_are_found() -> None:
    with pytest.raises(AssertionError, match="another version"):
        check([ONE])
    with pytest.raises(AssertionError, match="came back"):
        check([ONE, TWO, ONE, TWO], move(None, ONE), move(ONE, TWO, until=2))


def test_conflict_needs_somebody_in_the_way_and_a_request_without_an_answer_to_have_been_done() -> None:
    check([ONE], move(None, ONE), move(None, TWO, outcome="conflict"))
    unanswered = move(ONE, TWO, since=1, until=3, outcome="conflict", ambiguous=True)
    check([ONE, TWO, THREE], move(None, ONE), unanswered, move(TWO, THREE, since=2, until=3))

    with pytest.raises(AssertionError, match="in the way"):
        check([], move(None, ONE, until=0, outcome="conflict"))
    with pytest.raises(AssertionError, match="was done"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2, outcome="conflict"))


def test_move_that_came_too_late_was_taken_back_by_its_mover_or_overtaken() -> None:
    back = move(ONE, TWO, THREE, since=1, until=3, outcome="collected")
    check([ONE, TWO, THREE], move(None, ONE), back)
    check([ONE, TWO, version(4)], move(None, ONE), back, move(TWO, version(4), since=2, until=3))

    with pytest.raises(AssertionError, match="not taken back"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2, outcome="collected"))
    with pytest.raises(AssertionError, match="never came"):
        check([ONE], move(None, ONE), move(ONE, TWO, since=1, until=1, outcome="collected"))
