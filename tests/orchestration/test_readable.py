from __future__ import annotations

import pytest

from wal3_orchestration.framework.readable import beside, duration, shortened, text_of


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "0.25 s"),
        (59, "59 s"),
        (60, "1 minute"),
        (90, "1.5 minutes"),
        (3_600, "1 hour"),
        (26 * 86_400 + 7, "26 days"),
        (86_400, "1 day"),
    ],
)
def test_duration_is_written_in_its_largest_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sizes_and_durations_have_a_text_beside_them_and_other_numbers_have_none() -> None:
    numbers = {"total bytes": 1_300_000, "wait_s": 2_246_400, "oldest due (s)": 90.0, "records": 7, "bytes": 0}

    assert beside(numbers) == {
        "total size": "1.3 MB",
        "wait": "26 days",
        "oldest due": "1.5 minutes",
    }
    assert beside({"fraction (of bytes)": 0.5, "sealed": True, "reason": "bytes"}) == {}
    assert (text_of("bytes", 12), text_of("lag", 1_200), text_of("fraction", 0.51234)) == ("12 bytes", "1,200", "0.512")


def test_sentence_keeps_names_and_numbers_and_leaves_out_folders_of_objects() -> None:
    said = (
        "2 problems: fragment 5 (log/Bucket=00/FragmentSeqNo=0005.parquet): expected 4096 bytes, found 12 bytes"
        " (file s3://bucket/p/team/orders/Life=1/log/Bucket=00/FragmentSeqNo=0005.parquet, offsets 13 to 15);"
        " cursor/reader.json: idle for 2246400 s; log team/orders"
    )

    assert shortened(said) == (
        "2 problems: fragment 5 (…/FragmentSeqNo=0005.parquet): expected 4.1 kB, found 12 bytes"
        " (file …/FragmentSeqNo=0005.parquet, offsets 13 to 15); cursor/reader.json: idle for 26 days; log team/orders"
    )
