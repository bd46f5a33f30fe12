"""The search for an order finds one where there is one, and none where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.linearizable import PENDING_S, Operation, linearizable

if TYPE_CHECKING:
    from collections.abc import Sequence


def write(value: object, began_s: float, ended_s: float) -> Operation:
    return Operation(what=f"write {value}", began_s=began_s, ended_s=ended_s, step=lambda _: (value,))


def read(value: object, began_s: float, ended_s: float) -> Operation:
    def step(state: object) -> Sequence[object]:
        return (state,) if state == value else ()

    return Operation(what=f"read {value}", began_s=began_s, ended_s=ended_s, step=step)


def swap(old: object, new: object, began_s: float, ended_s: float) -> Operation:
    def step(state: object) -> Sequence[object]:
        return (new,) if state == old else ()

    return Operation(what=f"{old} to {new}", began_s=began_s, ended_s=ended_s, step=step)


def test_operations_one_after_the_other_must_agree() -> None:
    assert linearizable([], None)
    assert linearizable([write(1, 0, 1), read(1, 2, 3)], None)
    assert not linearizable([write(1, 0, 1), read(2, 2, 3)], None)
    assert not linearizable([write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)], None)


def test_operations_that_overlap_may_come_in_any_order_but_in_one() -> None:
    assert linearizable([write(1, 0, 3), read(None, 1, 2)], None)
    assert linearizable([write(1, 0, 3), read(1, 1, 2)], None)
    assert not linearizable([write(1, 0, 9), read(1, 1, 2), read(None, 3, 4)], None)


def test_of_two_swaps_from_one_version_one_succeeds() -> None:
    assert linearizable([swap(None, 1, 0, 5), swap(1, 2, 0, 5)], None)
    assert not linearizable([swap(None, 1, 0, 5), swap(None, 2, 0, 5)], None)


def test_a_pending_operation_may_have_happened_or_not_and_also_late() -> None:
    pending = Operation(
        what="maybe 1", began_s=0, ended_s=PENDING_S, step=lambda state: (1, state) if state is None else (state,)
    )

    assert linearizable([pending, read(None, 1, 2)], None)
    assert linearizable([pending, read(None, 1, 2), read(1, 3, 4)], None)
    assert not linearizable([pending, read(1, 1, 2), read(None, 3, 4)], None)
