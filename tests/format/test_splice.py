"""Runs of fragments are replaced anywhere in any tree, and everything else stays as it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.format.test_repack import Grown, grown_trees
from tests.format.trees import Tree
from wal3_core.errors import InvalidRequestError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Compaction
from wal3_core.format.pass_record import Replacement
from wal3_core.format.paths import fragment_path
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import sum_setsums
from wal3_core.log.tree.splice import Spliced, apply_splice, splice

EXAMPLES = int(os.environ.get("WAL3_TREES", some(100)))
TOKEN = "c" * 16
DROPPED = Setsum.of((b"a dropped record",))


def replacement(members: Sequence[FragmentPointer], dropped: Setsum = EMPTY) -> Replacement:
    """Stand for a run with one fragment, without some of its records."""
    first, last = members[0], members[-1]
    pointer = replace(
        last,
        path=fragment_path(last.seq_no, TOKEN),
        first_seq_no=first.first_seq_no,
        start=first.start,
        setsum=sum_setsums(members) - dropped,
        num_bytes=7,
        num_records=1,
    )
    return Replacement(tuple(members), pointer)


def spliced(tree: Tree, replacements: Sequence[Replacement]) -> Spliced:
    """Replace runs in a tree."""
    made = splice(tree.manifest, replacements, tree.options, tree.load)
    for snapshot in made.written:
        tree.keep(snapshot)
    tree.manifest = apply_splice(tree.manifest, made, replacements, Compaction(1, TOKEN))
    return made


@pytest.mark.slow
@given(grown_trees(), st.data())
@settings(max_examples=EXAMPLES, derandomize=True)
def test_any_runs_of_any_tree_are_replaced_and_the_setsums_balance(grown: Grown, data: st.DataObject) -> None:
    """INV-41."""
    tree, before = grown.tree, grown.fragments
    cuts = sorted(data.draw(st.sets(st.integers(0, len(before)), max_size=12)))
    runs = [before[start:limit] for start, limit in zip(cuts[::2], cuts[1::2], strict=False)]
    replacements = [replacement(run, DROPPED) for run in runs if run]
    setsum, paths = tree.manifest.setsum, {each.path for each in before} | set(tree.snapshots)

    made = spliced(tree, replacements)

    expected = list(before)
    for each in reversed(replacements):
        at = expected.index(each.members[0])
        expected[at : at + len(each.members)] = [each.pointer]
    assert tree.fragments == expected
    tree.manifest.check()
    for snapshot in made.written:
        snapshot.check("a snapshot")
    assert tree.manifest.setsum == setsum
    assert tree.manifest.pruned == sum((DROPPED for _ in replacements), start=EMPTY)
    # What is named as replaced is what nothing leads to any more, of all that was reachable.
    reached = {pointer.path for top in tree.manifest.pointers for pointer in walk(tree, top)}
    old = {pointer.path for top in grown.fragments for pointer in (top,)} | paths
    assert set(made.replaced) <= old - reached
    assert {member.path for each in replacements for member in each.members} <= set(made.replaced)


def walk(tree: Tree, pointer: object) -> list[object]:
    """Everything that a pointer leads to, and itself."""
    below = tree.snapshots[pointer.path].pointers if pointer.path in tree.snapshots else ()
    return [pointer, *(found for each in below for found in walk(tree, each))]


def test_run_across_snapshots_of_all_depths_and_the_manifest_s_fragments_is_replaced() -> None:
    tree = Tree()
    tree.node([2, 2])
    tree.leaf(2)
    tree.append(2)
    fragments = tree.fragments

    spliced(tree, [replacement(fragments[1:7])])

    assert [pointer.num_records for pointer in tree.fragments] == [
        fragments[0].num_records,
        1,
        fragments[7].num_records,
    ]
    assert [pointer.depth for pointer in tree.manifest.snapshots] == [2]


def test_only_the_snapshots_that_lead_to_a_replaced_fragment_are_written() -> None:
    tree = Tree()
    tree.node([4, 4, 4])
    tree.node([4, 4, 4])
    tree.loaded.clear()

    made = spliced(tree, [replacement(tree.fragments[5:7])])

    assert sorted(snapshot.depth for snapshot in made.written) == [1, 2]


def test_runs_that_another_changed_meanwhile_are_refused() -> None:
    tree = Tree()
    tree.leaf(4)
    stale = replacement(tree.fragments[1:3])
    spliced(tree, [replacement(tree.fragments[:2])])

    for runs in ([stale], [replacement(stale.members[:1])]):
        with pytest.raises(InvalidRequestError, match="as they were compacted, found others"):
            spliced(tree, runs)
