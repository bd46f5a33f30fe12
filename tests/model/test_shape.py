"""A tree's shape tells an operator, and maintenance, whether packing it anew pays."""

from __future__ import annotations

import pytest

from tests.model.trees import SMALL, Tree
from wal3_core.model.shape import measure_shape

# What the nodes of depth 2 hold, leaves after them, and fragments after those.
Parts = tuple[list[list[int]], list[int], int]


def grown(parts: Parts) -> Tree:
    nodes, leaves, fragments = parts
    tree = Tree()
    for sizes in nodes:
        tree.node(sizes)
    for size in leaves:
        tree.leaf(size)
    tree.append(fragments)
    return tree


def test_shape_counts_what_is_wasted_with_and_without_loading() -> None:
    tree = Tree()
    tree.node([1] * 6)
    tree.node([4, 4, 4])
    tree.leaf(3)
    tree.append(2)

    exact, cheap = tree.shape(), measure_shape(tree.manifest, SMALL)

    assert (exact.exact, cheap.exact) == (True, False)
    for shape in (exact, cheap):
        assert (shape.num_fragments, shape.root_pointers, shape.root_fragments, shape.root_snapshots) == (23, 5, 2, 1)
        assert (shape.leaves.num_nodes, shape.leaves.num_pointers, shape.leaves.num_wasted) == (10, 21, 4)
        assert (shape.nodes.num_nodes, shape.nodes.num_pointers, shape.nodes.num_wasted) == (2, 9, 0)
        assert shape.manifest_bytes == len(tree.manifest.to_bytes())
    assert (exact.leaves.smallest, exact.leaves.largest, exact.leaves.fill) == (1, 4, 21 / 40)
    assert (cheap.leaves.smallest, cheap.leaves.largest) == (3, 3)


@pytest.mark.parametrize(
    "parts",
    [([], [], 10), ([], [4] * 6, 0), ([], [5], 0), ([[4] * 7], [], 0), ([[1] * 6], [], 0)],
    ids=["fragments", "snapshots", "leaf too full", "node too full", "leaves nearly empty"],
)
def test_tree_that_no_writer_leaves_is_ripe(parts: Parts) -> None:
    tree = grown(parts)

    assert tree.shape().ripe
    assert tree.plan() is not None


@pytest.mark.parametrize("parts", [([], [], 0), ([[4, 4]], [4], 9), ([], [4] * 5, 0), ([[4] * 6, [2]], [2], 3)])
def test_tree_that_a_writer_leaves_is_not_ripe(parts: Parts) -> None:
    tree = grown(parts)

    assert not tree.shape().ripe
    assert tree.plan() is None
