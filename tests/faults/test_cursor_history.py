"""Answers that agree with the store's order pass, and no others."""

from __future__ import annotations

import pytest

from tests.faults.cursor_history import CursorHistory, Deletion, Load, Move, Outcome, Version
from tests.stores import LOG_ID
from wal3_core import LogPosition
from wal3_core.format.cursor import Cursor
from wal3_core.format.tombstone import Tombstone


def version(number: int) -> Cursor:
    return Cursor(
        position=LogPosition(number, 0), epoch_us=0, writer=f"hand {number}", generation=number, log_id=LOG_ID
    )


ONE, TWO, THREE = version(1), version(2), version(3)
GONE = Tombstone(generation=2, log_id=LOG_ID, writer="hand 2")


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


def deletion(*sent: Tombstone, since: int = 1, until: int | None = 2, outcome: Outcome = "done") -> Deletion:
    return Deletion([tombstone.to_bytes() for tombstone in sent], since, until=until, outcome=outcome)


def check(landed: list[Version], *answers: Load | Move | Deletion) -> None:
    loads = [answer for answer in answers if isinstance(answer, Load)]
    moves = [answer for answer in answers if isinstance(answer, Move)]
    deletions = [answer for answer in answers if isinstance(answer, Deletion)]
    CursorHistory([None, *landed], loads, moves, deletions).check()


def test_a_load_may_return_any_version_of_its_time_and_no_other() -> None:
    check([ONE], move(None, ONE), Load(None, [None, ONE]), Load(ONE, [None, ONE]))

    with pytest.raises(AssertionError, match="was not there"):
        check([ONE], move(None, ONE), Load(None, [ONE]))


def test_move_reported_as_done_landed_while_it_lasted_and_on_the_version_it_saw() -> None:
    check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2))

    with pytest.raises(AssertionError, match="was not"):
        check([], move(None, ONE, until=0))
    with pytest.raises(AssertionError, match="was not"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=0, until=1))
    with pytest.raises(AssertionError, match="was not"):
        check([ONE, TWO, THREE], move(None, ONE), move(ONE, TWO, until=2), move(ONE, THREE, since=1, until=3))


def test_version_on_another_than_it_was_sent_for_is_found_whatever_was_reported() -> None:
    late = move(ONE, THREE, until=None, outcome="pending")
    check([ONE, THREE], move(None, ONE), late)

    with pytest.raises(AssertionError, match="another version"):
        check([ONE, TWO, THREE], move(None, ONE), move(ONE, TWO, until=2), late)


def test_version_that_no_call_sent_and_one_that_comes_back_are_found() -> None:
    with pytest.raises(AssertionError, match="another version"):
        check([ONE])
    with pytest.raises(AssertionError, match="came back"):
        check([ONE, TWO, ONE, TWO], move(None, ONE), move(ONE, TWO, until=2))


def test_conflict_needs_another_version_in_the_way_and_if_applied_a_lost_answer() -> None:
    check([ONE], move(None, ONE), move(None, TWO, outcome="conflict"))
    unanswered = move(ONE, TWO, since=1, until=3, outcome="conflict", ambiguous=True)
    check([ONE, TWO, THREE], move(None, ONE), unanswered, move(TWO, THREE, since=2, until=3))

    with pytest.raises(AssertionError, match="in the way"):
        check([], move(None, ONE, until=0, outcome="conflict"))
    with pytest.raises(AssertionError, match="was done"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2, outcome="conflict"))


def test_move_that_came_too_late_was_withdrawn_by_its_mover_or_overtaken() -> None:
    back = move(ONE, TWO, THREE, since=1, until=3, outcome="collected")
    check([ONE, TWO, THREE], move(None, ONE), back)
    check([ONE, TWO, version(4)], move(None, ONE), back, move(TWO, version(4), since=2, until=3))

    with pytest.raises(AssertionError, match="not withdrawn"):
        check([ONE, TWO], move(None, ONE), move(ONE, TWO, since=1, until=2, outcome="collected"))
    with pytest.raises(AssertionError, match="never came"):
        check([ONE], move(None, ONE), move(ONE, TWO, since=1, until=1, outcome="collected"))


def test_name_of_a_deleted_cursor_is_used_again_and_reads_as_none_meanwhile() -> None:
    again = move(None, THREE, since=2, until=3)
    check([ONE, GONE, THREE], move(None, ONE), deletion(GONE), again, Load(None, [ONE, GONE]))

    with pytest.raises(AssertionError, match="was not"):
        check([ONE, GONE, THREE], move(None, ONE), deletion(GONE), move(ONE, THREE, since=2, until=3))
    with pytest.raises(AssertionError, match="was not there"):
        check([ONE, GONE], move(None, ONE), deletion(GONE), Load(ONE, [GONE]))


def test_delete_takes_one_version_and_none_created_after_it() -> None:
    late = deletion(GONE, outcome="unknown", since=1, until=1)
    check([ONE, GONE], move(None, ONE), late)
    check([ONE, TWO, GONE], move(None, ONE), move(ONE, TWO, until=2), deletion(GONE, until=None, outcome="pending"))

    with pytest.raises(AssertionError, match="created after the delete"):
        check([ONE, TWO, GONE], move(None, ONE), move(ONE, TWO, until=2), late)
    with pytest.raises(AssertionError, match="by no call"):
        check([ONE, GONE], move(None, ONE))
    with pytest.raises(AssertionError, match="never was"):
        check([ONE], move(None, ONE), deletion(since=1, until=1))
    with pytest.raises(AssertionError, match="two versions"):
        twice = Tombstone(generation=4, log_id=LOG_ID, writer="hand 4")
        both = deletion(GONE, twice, until=4)
        check([ONE, GONE, THREE, twice], move(None, ONE), both, move(None, THREE, since=2, until=3))


def test_create_that_arrives_after_the_end_of_its_log_belongs_to_no_history() -> None:
    """In a log that was copied, no mover has sent the first version."""
    CursorHistory([ONE, TWO, None, ONE], moves=[move(ONE, TWO)]).check()

    with pytest.raises(AssertionError, match="another version"):
        CursorHistory([ONE, TWO, None, THREE], moves=[move(ONE, TWO)]).check()
    with pytest.raises(AssertionError, match="another version"):
        CursorHistory([ONE, TWO, GONE, ONE], moves=[move(ONE, TWO)]).check()
