"""What a roll-up decides about one marker: nothing that the manifest does not hold is ever dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal3_core.fleet.dirty.rollup_plan import Decision, LogProbe, RollUpOptions, before, decide, since
from wal3_core.format.marker import Marker
from wal3_core.format.position import LogPosition

LOG_ID = "0123456789abcdef" * 2
NOW_US = 10**9
_offsets = st.integers(1, 12)


@st.composite
def _markers(draw: st.DrawFn) -> Marker:
    start = draw(_offsets)
    limit = draw(st.integers(start + 1, 14))
    return Marker(
        log="a",
        life=draw(st.sampled_from([LOG_ID[:8], "ffffffff"])),
        start=start,
        limit=LogPosition(limit, draw(st.sampled_from([NOW_US, NOW_US - 10**8]))),
        num_records=draw(st.integers(1, 20)),
        first_us=draw(st.integers(0, NOW_US)),
        reinsertions=draw(st.integers(0, 3)),
    )


@st.composite
def _looked(draw: st.DrawFn) -> LogProbe:
    first = draw(_offsets)
    return LogProbe(
        log_id=draw(st.sampled_from([LOG_ID, LOG_ID, "f" * 32, ""])),
        first=first,
        next=draw(st.integers(first, 14)),
        sealed=draw(st.booleans()),
        processed=draw(st.none() | _offsets),
        error=draw(st.sampled_from([None, None, "CorruptError: damaged"])),
    )


_options = st.builds(
    RollUpOptions,
    cursor=st.just("done"),
    take_all=st.booleans(),
    records_max=st.integers(1, 10),
    reinsertions_max=st.integers(1, 3),
    undecided_s=st.sampled_from([0.0, 50.0, 500.0]),
)


def offsets(*markers: Marker | None) -> set[int]:
    return {offset for each in markers if each is not None for offset in range(each.start, each.limit.offset)}


@given(_markers(), _offsets)
def test_parts_before_and_since_an_offset_make_up_the_marker(marker: Marker, offset: int) -> None:
    parts = before(marker, offset), since(marker, offset)

    assert offsets(*parts) == offsets(marker)
    assert offsets(parts[0]) == {each for each in offsets(marker) if each < offset}
    assert all(part is None or part.num_records >= 1 for part in parts)


@given(_markers(), _looked(), _options)
def test_what_the_manifest_does_not_decide_stays_marked(
    marker: Marker, looked: LogProbe, options: RollUpOptions
) -> None:
    found = decide(marker, looked, NOW_US, options)

    ends = looked.error is None and (looked.log_id != LOG_ID or marker.life != LOG_ID[:8])
    ends = looked.error is None and looked.log_id[:8] != marker.life
    undecided = (
        {each for each in offsets(marker) if each >= looked.next} if not looked.sealed or looked.error else set()
    )
    done = max(looked.first, looked.processed or 0)
    held = {each for each in offsets(marker) if done <= each < looked.next}
    if ends:
        assert found.decision is Decision.GONE
        return
    assert offsets(found.left(handled=True)) >= undecided
    assert offsets(found.left(handled=False)) >= undecided | held
    if looked.error is not None:
        assert offsets(found.left(handled=True)) == offsets(marker)
    elif undecided and not held:
        assert found.decision is Decision.UNDECIDED
    elif not held:
        assert found.left(handled=False) is None


@given(_markers(), _looked(), _options, _offsets)
def test_fence_drops_only_what_lies_behind_the_log_s_end(
    marker: Marker, looked: LogProbe, options: RollUpOptions, more: int
) -> None:
    found = decide(marker, looked, NOW_US, options)
    if found.rest is None:
        assert not found.overdue
        return

    fenced = found.fenced(looked.next + more)

    for handled in (False, True):
        left = offsets(found.left(handled=handled))
        assert offsets(fenced.left(handled=handled)) == {each for each in left if each < looked.next + more}
    assert found.fenced(None).left(handled=False) is None
    assert not fenced.overdue
