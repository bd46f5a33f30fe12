"""The cut through a log's tree, the garbage document, and the manifest's transitions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.format.conftest import TOKEN, fragments_after
from tests.format.trees import ENTRY, Tree
from tests.stores import LOG_ID
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format import strict_json
from wal3_core.format.garbage import Garbage
from wal3_core.format.manifest import Announcement, Boundary, Manifest
from wal3_core.format.paths import fragment_path, garbage_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import sum_setsums
from wal3_core.log.tree.splice import Cut, cut_below

GOLDEN = Path(__file__).parent.parent / "golden"


def cut(tree: Tree, offset: int) -> Cut:
    return cut_below(tree.manifest, offset, lambda pointer: tree.snapshots[pointer.path])


def take(tree: Tree, offset: int) -> Cut:
    """Cut, and prune the manifest."""
    found = cut(tree, offset)
    for snapshot in found.written:
        tree.keep(snapshot)
    announced, announcement = announce(tree, found)
    tree.manifest = announced.apply_garbage(announcement, found.pointers)
    return found


def announce(tree: Tree, found: Cut) -> tuple[Manifest, Announcement]:
    announced = tree.manifest.apply_announcement(garbage_path(sum_setsums(found.dropped), TOKEN), found.first)
    assert announced.announced is not None
    return announced, announced.announced


def deep_tree() -> Tree:
    """((1 2) (3 4)) (5 6) 7 8, each fragment of three records."""
    tree = Tree()
    tree.node([2, 2])
    tree.leaf(2)
    tree.append(2)
    return tree


def numbers(tree: Tree) -> list[int]:
    return [fragment.seq_no for fragment in tree.fragments]


# ---------------------------------------------------------------------- the cut


@pytest.mark.parametrize(("offset", "first"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (24, 8), (25, 9)])
def test_only_fragments_go_whose_records_all_lie_below(offset: int, first: int) -> None:
    tree = deep_tree()

    found = cut(tree, offset)

    assert found.first.seq_no == first
    assert found.first.position.offset == 3 * first - 2
    gone = [leaf.seq_no for pointer in found.dropped for leaf in tree.leaves(pointer)]
    assert gone == list(range(1, first))


def test_cut_where_nothing_lies_below_changes_nothing() -> None:
    tree = deep_tree()
    pointers = tree.manifest.pointers

    assert cut(tree, 3) == Cut(
        first=Boundary(FragmentSeqNo(1), pointers[0].start), pointers=pointers, dropped=(), replaced=(), written=()
    )


def test_cut_above_everything_keeps_nothing_and_begins_at_the_next_append() -> None:
    tree = deep_tree()

    assert cut(tree, 25) == Cut(
        first=tree.manifest.next, pointers=(), dropped=tree.manifest.pointers, replaced=(), written=()
    )


def test_cut_between_snapshots_writes_none() -> None:
    tree = deep_tree()

    found = cut(tree, 13)

    assert found.dropped == tree.manifest.pointers[:1]
    assert found.pointers == tree.manifest.pointers[1:]
    assert (found.replaced, found.written) == ((), ())
    assert tree.loaded == []


def test_cut_through_a_snapshot_of_depth_1_writes_one_with_the_kept_part() -> None:
    tree = deep_tree()
    deep, straddled = tree.manifest.snapshots

    found = cut(tree, 16)

    [part] = found.written
    assert [pointer.first_seq_no for pointer in part.pointers] == [6]
    assert found.replaced == (straddled,)
    assert found.dropped == (deep, *tree.snapshots[straddled.path].pointers[:1])
    assert found.pointers == (part.pointer_to(part.to_bytes()), *tree.manifest.fragments)


def test_cut_through_a_snapshot_of_depth_2_writes_one_of_each_depth_deepest_first() -> None:
    tree = deep_tree()
    [first, second] = tree.snapshots[tree.manifest.snapshots[0].path].pointers

    found = cut(tree, 10)

    leaf, node = found.written
    assert (leaf.depth, node.depth) == (1, 2)
    assert node.pointers == (leaf.pointer_to(leaf.to_bytes()),)
    assert found.replaced == (second, tree.manifest.snapshots[0])
    assert found.dropped == (first, *tree.snapshots[second.path].pointers[:1])


def test_compacted_fragment_is_dropped_whole_or_kept_whole() -> None:
    """A compacted fragment begins with an earlier number than its own."""
    plain = fragments_after(Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=1), 3)
    merged = replace(plain[2], first_seq_no=plain[0].first_seq_no, start=plain[0].start)
    tree = Tree()
    tree.manifest = Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=1).apply_fragments(ENTRY, [merged])

    assert cut(tree, 9).pointers == (merged,)
    assert cut(tree, 10).dropped == (merged,)


def test_written_snapshots_carry_the_manifest_s_fence() -> None:
    """So that none is taken for an earlier upload that is marked for deletion."""
    tree = deep_tree()
    before = cut(tree, 10)

    tree.manifest = replace(tree.manifest, fence=tree.manifest.fence + 1)
    after = cut(tree, 10)

    assert {part.fence for part in before.written} == {0}
    assert {part.fence for part in after.written} == {1}
    names = [[part.pointer_to(part.to_bytes()).path for part in found.written] for found in (before, after)]
    assert set(names[0]).isdisjoint(names[1])


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=some(200))
@given(
    nodes=st.lists(SIZES, max_size=3),
    leaves=st.lists(st.integers(1, 5), max_size=3),
    loose=st.integers(0, 4),
    cuts=st.lists(st.integers(1, 300), min_size=1, max_size=4),
)
def test_any_cuts_through_any_tree_lose_nothing_and_balance(
    nodes: list[list[int]], leaves: list[int], loose: int, cuts: list[int]
) -> None:
    """INV-13: every fragment is kept or dropped, the setsums balance, and the manifest passes its checks."""
    tree = Tree()
    for sizes in nodes:
        tree.node(sizes)
    for size in leaves:
        tree.leaf(size)
    tree.append(loose)
    every, pruned = numbers(tree), EMPTY

    for offset in sorted(cuts):
        before, setsum = numbers(tree), tree.manifest.setsum
        if not cut(tree, offset).dropped:
            continue
        found = take(tree, offset)
        pruned += sum_setsums(found.dropped)
        gone = [leaf.seq_no for pointer in found.dropped for leaf in tree.leaves(pointer)]
        assert gone + numbers(tree) == before
        assert numbers(tree) == [number for number in every if 3 * number + 1 > offset]
        assert (tree.manifest.setsum, tree.manifest.pruned) == (setsum, pruned)
        assert tree.manifest.num_records == 3 * len(numbers(tree))
        for part in found.written:
            part.check("a part")


# ---------------------------------------------------------------------- the manifest


def test_announced_manifest_shows_what_will_stay() -> None:
    tree = deep_tree()
    found = cut(tree, 10)

    announced, announcement = announce(tree, found)

    assert tree.manifest.first_kept == tree.manifest.first
    assert announced.first_kept == found.first
    assert announced.first == tree.manifest.first
    assert announced.withdraw_announcement(announcement) == tree.manifest
    assert Manifest.from_bytes(announced.to_bytes()) == announced


@pytest.mark.parametrize("seq_no", [0, 1, 10])
def test_collection_of_nothing_or_beyond_the_end_is_not_announced(seq_no: int) -> None:
    tree = deep_tree()

    with pytest.raises(InvalidRequestError, match=f"a fragment from 2 to 9, found {seq_no}"):
        tree.manifest.apply_announcement(garbage_path(EMPTY, TOKEN), Boundary(FragmentSeqNo(seq_no), LogPosition(1, 1)))


def test_only_an_announced_collection_is_pruned_or_withdrawn() -> None:
    tree = deep_tree()
    found = cut(tree, 10)
    announced, announcement = announce(tree, found)
    withdrawn = replace(announced.withdraw_announcement(announcement), generation=announced.generation + 2)
    other = tree.manifest.apply_announcement(garbage_path(EMPTY, TOKEN), found.first)
    again = withdrawn.apply_announcement(announcement.garbage, announcement.first)

    # The same collection announced again is another one: a cursor may have been created in between.
    for manifest in (tree.manifest, withdrawn, other, again):
        with pytest.raises(InvalidRequestError, match="to be announced"):
            manifest.apply_garbage(announcement, found.pointers)
        with pytest.raises(InvalidRequestError, match="to be announced"):
            manifest.withdraw_announcement(announcement)


def test_pruning_elsewhere_than_announced_is_refused() -> None:
    tree = deep_tree()
    announced, announcement = announce(tree, cut(tree, 10))

    with pytest.raises(InvalidRequestError, match="begin at fragment 4, found 7"):
        announced.apply_garbage(announcement, cut(tree, 19).pointers)


def test_log_that_was_collected_whole_continues_at_its_end() -> None:
    tree = deep_tree()
    following = tree.manifest.next

    take(tree, 25)

    assert tree.manifest.first == tree.manifest.next == following
    assert tree.manifest.pruned == tree.manifest.setsum
    [added] = fragments_after(tree.manifest, 1)
    grown = tree.manifest.apply_fragments(ENTRY, [added])
    assert (grown.first.seq_no, grown.first.position.offset) == (9, 25)


# ---------------------------------------------------------------------- the document


def garbage_of(tree: Tree, offset: int) -> Garbage:
    found = cut(tree, offset)
    return Garbage(
        generation=2,
        token=TOKEN,
        writer="w",
        log_id=LOG_ID,
        reason="cursor reader is at offset 10",
        first=found.first,
        dropped=found.dropped,
        replaced=found.replaced,
    )


def marked() -> Garbage:
    return Garbage(
        generation=1,
        token=TOKEN,
        writer="w",
        log_id=LOG_ID,
        reason="2 objects that nothing refers to",
        first=None,
        orphans=(fragment_path(FragmentSeqNo(7), TOKEN), f"snapshot/SNAPSHOT.{'a' * 64}.{'b' * 16}"),
        pruned=True,
    )


def golden(name: str, stored: bytes) -> None:
    path = GOLDEN / name
    assert path.read_bytes() == stored, f"the format changed: {path} holds what earlier versions wrote"


def test_formats_are_what_earlier_versions_wrote() -> None:
    dropped, orphans = garbage_of(deep_tree(), 10), marked()

    golden("garbage.json", dropped.to_bytes())
    golden("garbage_of_orphans.json", orphans.to_bytes())
    assert Garbage.from_bytes((GOLDEN / "garbage.json").read_bytes(), what="g") == dropped
    assert Garbage.from_bytes((GOLDEN / "garbage_of_orphans.json").read_bytes(), what="g") == orphans


def test_document_counts_what_is_dropped_and_is_named_for_it() -> None:
    tree = deep_tree()

    garbage = garbage_of(tree, 10)

    gone = tree.fragments[:3]
    assert garbage.setsum == sum_setsums(gone)
    assert garbage.num_records == 9
    assert garbage.num_bytes == sum(fragment.num_bytes for fragment in gone)
    assert garbage.path == f"gc/GARBAGE.{sum_setsums(gone).hexdigest()}.{TOKEN}"
    assert replace(garbage, token="f" * 16).path != garbage.path


def test_every_shorter_document_is_an_error() -> None:
    stored = garbage_of(deep_tree(), 10).to_bytes()

    for length in range(len(stored)):
        with pytest.raises(CorruptError, match="gc/X"):
            Garbage.from_bytes(stored[:length], what="gc/X")


def forged(garbage: Garbage, **changes: object) -> bytes:
    document = json.loads(garbage.to_bytes())
    del document["checksum"]
    return strict_json.dump_checksummed({**document, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format_version": 3}, "format_version 2, found 3: a newer wal3"),
        ({"log_id": "0" * 31}, "32 hex digits"),
        ({"more": 1}, "no further fields, found more"),
        ({"token": "0123456789ABCDEF"}, "16 hex digits"),
        ({"token": "../../../../../"}, "16 hex digits"),
        ({"orphans": [{"path": "../../etc/passwd"}]}, "the path of a fragment or a snapshot"),
        ({"orphans": [{"path": "manifest/MANIFEST.json"}]}, "the path of a fragment or a snapshot"),
        ({"orphans": [{"path": "cursor/reader.json"}]}, "the path of a fragment or a snapshot"),
        ({"orphans": [{"path": f"b/snapshot/SNAPSHOT.{'a' * 64}.{'b' * 16}"}]}, "the path of a fragment or a snapshot"),
        ({"orphans": [{"path": f"snapshot/SNAPSHOT.{'a' * 64}.{'b' * 16}", "more": 1}]}, "no further fields"),
        ({"dropped": [{}]}, "expected a field snapshot"),
        ({"pruned": 1}, "true or false"),
    ],
)
def test_document_that_no_collection_wrote_is_an_error(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(CorruptError, match=complaint):
        Garbage.from_bytes(forged(garbage_of(deep_tree(), 10), **changes), what="gc/X")


def test_document_whose_run_has_a_gap_or_continues_elsewhere_is_an_error() -> None:
    garbage = garbage_of(deep_tree(), 19)
    assert garbage.first is not None
    elsewhere = Boundary(FragmentSeqNo(garbage.first.seq_no + 1), garbage.first.position)

    with pytest.raises(CorruptError, match="expected first seq_no"):
        Garbage.from_bytes(replace(garbage_of(deep_tree(), 16), dropped=garbage.dropped[::-1]).to_bytes(), what="g")
    with pytest.raises(CorruptError, match="expected the log to continue at fragment 7, found 8"):
        Garbage.from_bytes(replace(garbage, first=elsewhere).to_bytes(), what="g")
    with pytest.raises(CorruptError, match="expected the log to continue at fragment 7, found None"):
        Garbage.from_bytes(replace(garbage, first=None).to_bytes(), what="g")
