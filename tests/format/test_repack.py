"""Repacking keeps any tree's fragments in order, makes it shallow and half full, and leaves a well-shaped one alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.format.conftest import HOUR_US, TOKEN, fragments_after
from tests.format.trees import ENTRY, SMALL, STEP, Tree
from tests.stores import LOG_ID
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import garbage_path
from wal3_core.format.snapshot import DEPTH_MAX, Pointer, sum_setsums
from wal3_core.log.tree.shape import Reason, Repacker, capacity, factor, find_runs, half, measure_shape, pack, waiting
from wal3_core.log.tree.splice import cut_below
from wal3_core.options import SnapshotOptions

EXAMPLES = int(os.environ.get("WAL3_TREES", some(100)))

# ---------------------------------------------------------------------- any tree


@dataclass(frozen=True)
class Grown:
    """A tree and the fragments it holds."""

    tree: Tree
    fragments: list[FragmentPointer]


def fragment_run(manifest: Manifest, steps: Sequence[tuple[int, int]]) -> Manifest:
    """Append fragments by steps of (microseconds later, number of fragments that a compacted one replaces)."""
    plain = iter(fragments_after(manifest, sum(width for _, width in steps), step_us=0))
    at_us, made = manifest.next.position.timestamp_us, []
    for later_us, width in steps:
        run = list(islice(plain, width))
        at_us += later_us
        made.append(
            replace(
                run[-1],
                first_seq_no=run[0].first_seq_no,
                start=replace(run[0].start, timestamp_us=at_us),
                limit=replace(run[-1].limit, timestamp_us=at_us),
            )
        )
    return manifest.apply_fragments(ENTRY, made) if made else manifest


OPTIONS = st.builds(
    SnapshotOptions,
    fragments_per_snapshot=st.integers(1, 6),
    fragments_kept=st.integers(0, 4),
    snapshots_per_roll=st.integers(2, 4),
    snapshot_pointers_max=st.integers(2, 9),
    gc_interval_s=st.just(3600),
)
STEPS = st.tuples(st.sampled_from([0, 1000, HOUR_US // 3, HOUR_US]), st.sampled_from([1, 1, 1, 5]))
LEAF = st.lists(STEPS, min_size=1, max_size=9)
# A number nests that many earlier snapshots of one depth, so that all depths come in any order.
PARTS = st.lists(st.one_of(LEAF, st.integers(1, 12)), max_size=40)


@st.composite
def grown_trees(draw: st.DrawFn) -> Grown:
    tree = Tree(draw(OPTIONS))
    for part in draw(PARTS):
        if isinstance(part, int):
            depth = tree.manifest.snapshots[-1].depth if tree.manifest.snapshots else DEPTH_MAX
            run = list(islice(takewhile(lambda p, d=depth: p.depth == d, reversed(tree.manifest.snapshots)), part))
            if depth < DEPTH_MAX:
                tree.replace(run[::-1])
        else:
            tree.manifest = fragment_run(tree.manifest, part)
            tree.replace(tree.manifest.fragments)
    tree.manifest = fragment_run(tree.manifest, draw(st.lists(STEPS, max_size=40)))
    return Grown(tree, tree.fragments)


def check_well_shaped(tree: Tree) -> None:
    depths = [pointer.depth for pointer in tree.manifest.snapshots]
    assert depths == sorted(depths, reverse=True), "the writer rolls what follows the last deeper snapshot"
    options, snapshots = tree.options, tree.manifest.snapshots
    assert len(tree.manifest.fragments) < options.fragments_kept + 2 * options.fragments_per_snapshot
    for depth in range(1, DEPTH_MAX):
        start, limit = waiting(snapshots, depth, options)
        assert limit - start < 2 * factor(options)
    for family in tree.families():
        falls_by = factor(options) if family[0].depth > 1 and family[0] in snapshots else None
        check_neighbours([p.num_pointers for p in family], capacity(options, family[0].depth), falls_by)


def check_neighbours(sizes: list[int], full: int, falls_by: int | None) -> None:
    assert all(size <= full for size in sizes), sizes
    for before, after in pairwise(sizes):
        falls = falls_by is not None and before >= falls_by * after
        assert min(before, after) >= half(full) or before + after > full or falls, sizes


@pytest.mark.slow
@given(grown_trees())
@settings(max_examples=EXAMPLES, derandomize=True)
def test_any_tree_keeps_its_fragments_in_order_and_comes_out_shallow_full_and_small(grown: Grown) -> None:
    """INV-8."""
    tree = grown.tree
    counts = tree.manifest.setsum, tree.manifest.num_records, tree.manifest.num_bytes

    tree.compact()

    assert tree.fragments == grown.fragments
    assert (tree.manifest.setsum, tree.manifest.num_records, tree.manifest.num_bytes) == counts
    tree.manifest.check()
    for snapshot in tree.snapshots.values():
        snapshot.check("a snapshot")
    check_well_shaped(tree)


@pytest.mark.slow
@given(grown_trees(), st.integers(1, 200))
@settings(max_examples=EXAMPLES, derandomize=True)
def test_packing_a_packed_tree_does_nothing(grown: Grown, pointers_max: int) -> None:
    grown.tree.compact(pointers_max=pointers_max)
    packed = grown.tree.manifest

    steps = grown.tree.compact()

    assert (steps, grown.tree.manifest) == ([], packed)


@pytest.mark.slow
@given(grown_trees())
@settings(max_examples=EXAMPLES, derandomize=True)
def test_packed_tree_needs_no_compaction_and_one_that_does_has_a_plan(grown: Grown) -> None:
    before, plan = measure_shape(grown.tree.manifest, grown.tree.options), grown.tree.plan()
    exact = grown.tree.shape()

    grown.tree.compact()

    assert plan is not None or not (before.needs_compaction or exact.needs_compaction)
    assert not grown.tree.shape().needs_compaction
    assert not measure_shape(grown.tree.manifest, grown.tree.options).needs_compaction


@pytest.mark.slow
@given(grown_trees())
@settings(max_examples=EXAMPLES, derandomize=True)
def test_every_step_leaves_fewer_bad_nodes(grown: Grown) -> None:
    tree = grown.tree
    for _ in range(1000):
        plan = tree.plan()
        if plan is None:
            return
        before = badness(tree)

        repacked = tree.take(plan)

        assert badness(tree) < before
        assert [snapshot.depth for snapshot in repacked.written] == sorted(s.depth for s in repacked.written)


def badness(tree: Tree) -> list[int]:
    """Excess fragments; then for each depth the nodes that are not well filled, and those in the manifest."""
    options = tree.options
    fragments_max = options.fragments_kept + 2 * options.fragments_per_snapshot
    found = [max(0, len(tree.manifest.fragments) - fragments_max + 1)]
    every = [pointer for family in tree.families() for pointer in family]
    for depth in range(1, DEPTH_MAX + 1):
        full = capacity(options, depth)
        found.append(sum(pointer.depth == depth and off(pointer.num_pointers, full) for pointer in every))
        found.append(sum(pointer.depth == depth for pointer in tree.manifest.snapshots))
    return found


def off(size: int, full: int) -> bool:
    return not half(full) <= size <= full


# ---------------------------------------------------------------------- particular trees


def test_tree_that_a_writer_built_is_left_alone() -> None:
    tree = Tree()
    for _ in range(300):
        tree.append(1, step_us=HOUR_US // 7)
        tree.roll()

        assert tree.plan() is None


def test_manifest_of_a_writer_that_died_before_rolling_is_rolled() -> None:
    tree = Tree(SnapshotOptions())
    tree.append(700)
    fragments = tree.fragments

    leaves, node = tree.compact(pointers_max=10_000)

    assert leaves.replaced == tuple(fragments[:-4])
    assert node.replaced == leaves.pointers
    assert tree.fragments == fragments
    assert tree.manifest.fragments == tuple(fragments[-4:])
    assert tree.sizes() == [[*([16] * 43), 8]]


def test_only_the_nodes_that_fit_together_are_rewritten() -> None:
    tree = Tree()
    untouched, repacked = tree.node([4, 3, 4, 2]), tree.node([4, 1, 2, 4])
    tail = tree.leaf(3)

    [step] = tree.compact()

    assert step.replaced == (repacked,)
    assert tree.sizes() == [[4, 3, 4, 2], [4, 3, 4], [3]]
    assert (tree.manifest.snapshots[0], tree.manifest.snapshots[2]) == (untouched, tail)
    assert [snapshot.depth for snapshot in step.written] == [1, 2]


def test_small_node_between_full_ones_is_left_because_packing_it_saves_nothing() -> None:
    tree = Tree()
    tree.node([4, 1, 4, 1, 4])

    assert tree.plan() is None


def test_leaves_of_compacted_fragments_are_joined_and_their_parents_too() -> None:
    tree = Tree()
    for _ in range(6):
        tree.node([1, 1, 1, 1, 1, 1])
    fragments = tree.fragments

    tree.compact()

    assert tree.fragments == fragments
    assert sum(len(leaves) for leaves in tree.sizes()) == 12
    assert [len(leaves) for leaves in tree.sizes()] == [6, 6]


def test_node_cut_by_a_collection_is_joined_with_a_neighbour_that_fits() -> None:
    tree = Tree()
    tree.node([4, 4, 4, 4, 3])
    tree.node([1, 4])
    kept = tree.fragments[17:]
    collect(tree, kept[0].start.offset)
    cut = tree.sizes()

    tree.compact()

    assert cut == [[2], [1, 4]]
    assert tree.sizes() == [[3, 4]]
    assert tree.fragments == kept


def collect(tree: Tree, offset: int) -> None:
    cut = cut_below(tree.manifest, offset, tree.load)
    for snapshot in cut.written:
        tree.keep(snapshot)
    announced = tree.manifest.apply_announcement(garbage_path(sum_setsums(cut.dropped), TOKEN), cut.first)
    assert announced.announced is not None
    tree.manifest = announced.apply_garbage(announced.announced, cut.pointers)


def test_larger_and_smaller_fan_outs_are_adopted() -> None:
    tree = Tree()
    tree.node([4] * 6)
    tree.node([4] * 6)
    fragments = tree.fragments

    tree.options = replace(SMALL, fragments_per_snapshot=16, snapshot_pointers_max=12)
    tree.compact()
    larger = tree.sizes()
    tree.options = SMALL
    tree.compact()

    assert larger == [[16, 8, 16, 8]]
    check_well_shaped(tree)
    assert tree.fragments == fragments


def test_step_keeps_to_its_limit_and_loads_no_leaf_that_it_leaves() -> None:
    tree = Tree()
    tree.node([4] * 5)
    tree.node([1] * 100)

    plan = tree.plan(pointers_max=20)
    assert plan is not None
    assert tree.loaded == [2, 2]
    step = tree.take(plan)

    assert tree.loaded == [2, 2, *([1] * 20)]
    assert (plan.num_pointers, len(step.written)) == (20, 5 + 15)


@pytest.mark.parametrize(
    ("sizes", "full", "runs"),
    [
        ([], 4, []),
        ([4, 4, 4], 4, []),
        ([1], 4, []),
        ([1, 1], 4, [(0, 2)]),
        ([4, 1, 1, 4], 4, [(1, 3)]),
        ([1, 4, 1, 4, 1], 4, []),
        ([9], 4, [(0, 1)]),
        ([9, 1], 4, [(0, 2)]),
        ([2, 2], 4, []),
        ([3, 1, 3, 1], 4, [(0, 4)]),
    ],
)
def test_runs_are_those_that_are_too_full_or_fit_together(
    sizes: list[int], full: int, runs: list[tuple[int, int]]
) -> None:
    tree = Tree()
    leaves = [tree.leaf(size) for size in sizes]

    assert find_runs(leaves, 1, full) == runs


@given(st.lists(st.sampled_from([0, HOUR_US // 4, HOUR_US]), min_size=1, max_size=60), st.integers(1, 9))
@settings(max_examples=EXAMPLES, derandomize=True)
def test_nodes_are_half_full_and_end_with_an_interval_where_one_ends_within_reach(
    steps_us: list[int], full: int
) -> None:
    manifest = Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=HOUR_US)
    fragments = fragment_run(manifest, [(step_us, 1) for step_us in steps_us]).fragments

    nodes = list(pack(fragments, full, HOUR_US))

    assert [fragment for node in nodes for fragment in node] == list(fragments)
    for node in nodes:
        assert len(node) <= full
        assert len(node) >= min(half(full), len(fragments))
    for node, after in pairwise(nodes):
        ends = [interval(a) != interval(b) for a, b in pairwise((*node, after[0]))]
        # A node that could have ended with an interval, half full, did.
        assert ends[-1] or not any(ends[half(full) - 1 :])


def interval(pointer: Pointer) -> int:
    return pointer.start.timestamp_us // HOUR_US


def test_findings_name_every_reason_at_once() -> None:
    tree = Tree()
    tree.node([1, 1, 4])
    for _ in range(6):
        tree.leaf(4)
    tree.append(20)

    found = list(Repacker(SMALL, tree.load, pointers_max=STEP).findings(tree.manifest))

    assert [finding.reason for finding in found] == [Reason.FRAGMENTS, Reason.LEAVES, Reason.NODES]
    assert found[1].parents == tree.manifest.snapshots[:1]


def test_unchanged_node_is_not_written_again() -> None:
    tree = Tree()
    first = tree.leaf(3)
    tree.append(1, step_us=HOUR_US)
    tree.replace(tree.manifest.fragments)
    tree.leaf(3)
    tree.leaf(1)

    [step] = tree.compact()

    assert tree.sizes() == [[3], [3], [2]]
    assert step.pointers[0] == first
    assert len(step.written) == 2


def test_step_deep_in_a_tree_rewrites_one_snapshot_of_each_depth_above_it() -> None:
    tree = Tree()
    for _ in range(2):
        tree.replace([tree.node([4] * 6) for _ in range(5)])
    lopsided = tree.replace([tree.node([4] * 6), tree.node([4, 1, 1, 4, 4, 4]), *(tree.node([4] * 6) for _ in "abc")])
    top = tree.replace(tree.manifest.snapshots)
    fragments = tree.fragments

    [step] = tree.compact()

    assert [snapshot.depth for snapshot in step.written] == [1, 2, 3, 4]
    assert step.replaced == (top,)
    assert tree.fragments == fragments
    assert lopsided not in tree.below(tree.manifest.snapshots[0])
    assert tree.below(tree.manifest.snapshots[0])[:2] == tree.below(top)[:2]


def test_step_takes_as_many_runs_as_its_limit_allows() -> None:
    tree = Tree()
    tree.node([4, 1, 1, 4, 2, 1, 4, 1, 2, 4, 1, 1, 4])

    found = next(Repacker(SMALL, tree.load, pointers_max=STEP).findings(tree.manifest))

    assert found.runs == ((1, 3), (4, 6), (7, 9), (10, 12))
    assert [len(found.within(count).runs) for count in (1, 2, 3, 4, 5, 7, 8, 9, 10)] == [1, 1, 1, 1, 2, 2, 3, 3, 4]


def test_plan_is_the_same_until_it_is_carried_out_and_sound_nodes_are_loaded_once() -> None:
    tree = Tree()
    tree.node([4, 4])
    tree.node([4, 1, 1, 4])
    repacker = Repacker(SMALL, tree.load, pointers_max=STEP)

    plans = [repacker.plan(tree.manifest) for _ in range(3)]

    assert plans[0] is not None
    assert plans == [plans[0]] * 3
    assert len(tree.loaded) == 1 + 3
