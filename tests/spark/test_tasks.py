"""Work is cut into few tasks of about equal cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.spark.jobs import TASK_COST_AMPLE, TASK_COST_MIN, TASKS_PER_CORE, cost, count_tasks, group

SIZES = st.lists(st.integers(0, 2**30), min_size=1, max_size=200)


@given(SIZES, st.integers(1, 50))
def test_groups_hold_every_item_once_in_order_and_none_outweighs_its_share(sizes: list[int], count: int) -> None:
    costs = [cost(size) for size in sizes]

    groups = group(range(len(sizes)), costs, count)

    assert [item for task in groups for item in task] == [*range(len(sizes))]
    assert 1 <= len(groups) <= count
    assert all(groups)
    assert max(sum(costs[item] for item in task) for task in groups) <= sum(costs) / count + max(costs)


@given(SIZES, st.integers(1, 64), st.integers(2**20, 2**30))
def test_tasks_are_a_few_for_each_core_or_as_many_as_their_bytes_want(
    sizes: list[int], cores: int, task_bytes: int
) -> None:
    costs = [cost(size) for size in sizes]

    count = count_tasks(costs, cores=cores, task_bytes=task_bytes)

    by_bytes = -(-sum(costs) // task_bytes)
    assert by_bytes <= count <= max(by_bytes, cores * TASKS_PER_CORE)
    assert count <= max(by_bytes, -(-sum(costs) // TASK_COST_MIN))


@pytest.mark.parametrize(
    ("total", "tasks"),
    [
        (1, 1),
        (TASK_COST_MIN, 1),
        (2 * TASK_COST_MIN, 2),
        # A rest makes no third task for two cores.
        (2 * TASK_COST_AMPLE - 1, 2),
        (4 * TASK_COST_AMPLE, 4),
        (64 * TASK_COST_AMPLE, 2 * TASKS_PER_CORE),
    ],
)
def test_two_cores_have_a_task_each_and_more_only_where_each_has_ample_work(total: int, tasks: int) -> None:
    assert count_tasks([total], cores=2, task_bytes=2**40) == tasks


@pytest.mark.parametrize(("count", "tasks"), [(15, 1), (20_500, 8), (10**6, 246)])
def test_tiny_objects_make_four_times_as_large_tasks_as_bytes_do(count: int, tasks: int) -> None:
    """Python once started in an executor for longer than its tasks took."""
    found = count_tasks([cost(1024)] * count, cores=2, task_bytes=256 * 2**20, num_bytes=1024 * count)

    assert found == tasks


@given(SIZES, st.integers(1, 64), st.integers(2**20, 2**30))
def test_bytes_are_cut_as_if_there_were_no_requests(sizes: list[int], cores: int, task_bytes: int) -> None:
    costs = [cost(size) for size in sizes]

    count = count_tasks(costs, cores=cores, task_bytes=task_bytes, num_bytes=sum(sizes))

    assert sum(sizes) / count <= task_bytes
    assert count <= count_tasks(costs, cores=cores, task_bytes=task_bytes)


def test_no_work_makes_no_task() -> None:
    assert count_tasks([], cores=2, task_bytes=100) == 0
    assert group([], [], 0) == []
