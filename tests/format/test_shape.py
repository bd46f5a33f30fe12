"""A tree's shape shows operators and maintenance whether repacking pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.format.trees import SMALL, Tree
from wal3_core.log.tree.shape import measure_shape

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
        assert (shape.num_fragments, shape.root_pointers, shape.root_fragments, shape.root_snapshots) == (23, 5, 2, 3)
        leaves, nodes = shape.levels
        assert (leaves.num_nodes, leaves.num_pointers, leaves.num_wasted) == (10, 21, 4)
        assert (nodes.num_nodes, nodes.num_pointers, nodes.num_wasted) == (2, 9, 0)
        assert (shape.num_snapshots, shape.num_wasted) == (12, 4)
        assert shape.manifest_bytes == len(tree.manifest.to_bytes())
    assert (exact.levels[0].smallest, exact.levels[0].largest, exact.levels[0].fill) == (1, 4, 21 / 40)
    assert (cheap.levels[0].smallest, cheap.levels[0].largest) == (3, 3)


def test_shape_of_a_deep_tree_is_counted_level_by_level() -> None:
    tree = Tree()
    tree.replace([tree.replace([tree.node([4] * 6) for _ in range(6)]) for _ in range(3)])
    tree.leaf(2)

    exact, cheap = tree.shape(), measure_shape(tree.manifest, SMALL)

    for shape in (exact, cheap):
        assert [(level.depth, level.num_nodes, level.num_pointers) for level in shape.levels] == [
            (1, 3 * 36 + 1, 3 * 144 + 2),
            (2, 3 * 6, 3 * 36),
            (3, 3, 3 * 6),
            (4, 1, 3),
        ]
        assert shape.num_fragments == 3 * 144 + 2
        assert not shape.needs_compaction


def test_few_nodes_of_falling_size_are_what_a_writer_leaves() -> None:
    tree = Tree(replace(SMALL, snapshot_pointers_max=20))
    tree.node([4] * 9)
    tree.node([4] * 3)
    tree.leaf(4)

    assert tree.plan() is None
    assert not tree.shape().needs_compaction
    tree.options = replace(tree.options, snapshots_per_roll=4)
    assert tree.plan() is not None, "a writer with these options takes the smaller one into the larger"


@pytest.mark.parametrize(
    "parts",
    [([], [], 10), ([], [4] * 6, 0), ([], [5], 0), ([[4] * 7], [], 0), ([[1] * 6], [], 0)],
    ids=["fragments", "snapshots", "leaf too full", "node too full", "leaves nearly empty"],
)
def test_tree_that_no_writer_leaves_needs_compaction(parts: Parts) -> None:
    tree = grown(parts)

    assert tree.shape().needs_compaction
    assert tree.plan() is not None


@pytest.mark.parametrize("parts", [([], [], 0), ([[4, 4]], [4], 9), ([], [4] * 5, 0), ([[4] * 6, [2]], [2], 3)])
def test_tree_that_a_writer_leaves_needs_no_compaction(parts: Parts) -> None:
    tree = grown(parts)

    assert not tree.shape().needs_compaction
    assert tree.plan() is None
