"""What several processes of one subscription have done comes together in one document."""

from __future__ import annotations

from wal3_core.format.offset_ranges import OffsetRanges
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import Fields
from wal3_core.views.feed.outstanding import Outstanding
from wal3_core.views.feed.subscribed import Progress

BEGIN = LogPosition(1, 0)


def ranges(low: int, high: int) -> OffsetRanges:
    return OffsetRanges.of([(low, high)])


def test_message_that_one_process_acknowledged_is_no_dead_letter_of_another() -> None:
    ours = Outstanding(BEGIN, Progress(done=ranges(2, 5)))

    ours.take_over(BEGIN, Progress(dead=ranges(3, 4)), Progress())
    ours.passed(1, 0)

    floor, progress = ours.floor()[0], ours.progress()
    assert (floor, ours.dead, progress.dead.ranges) == (5, {}, ())
    assert Progress.from_json(Fields(progress.to_json(floor), "saved"), floor) == progress


def test_dead_letter_that_is_acknowledged_too_leaves_the_document_readable() -> None:
    ours = Outstanding(BEGIN, Progress(done=ranges(2, 5), dead=ranges(3, 4)))

    ours.passed(1, 0)

    floor, progress = ours.floor()[0], ours.progress()
    assert floor == 5
    assert Progress.from_json(Fields(progress.to_json(floor), "saved"), floor) == progress


def test_dead_letter_below_where_another_process_is_goes_when_one_is_revived() -> None:
    ours = Outstanding(BEGIN, Progress(dead=OffsetRanges.of([(3, 4), (9, 10)])))

    # The other one has acknowledged 3, and has 9 delivered again.
    ours.take_over(LogPosition(5, 0), Progress(), Progress(dead=OffsetRanges.of([(3, 4), (9, 10)])))

    floor, progress = ours.floor()[0], ours.progress()
    assert (floor, progress.dead.ranges) == (5, ())
    assert Progress.from_json(Fields(progress.to_json(floor), "saved"), floor) == progress
