"""Fragment pointers. A fragment is one immutable Parquet file with a run of the log's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wal3_core.arguments import integer, make_plain
from wal3_core.errors import CorruptError
from wal3_core.format.paths import check_fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import SETSUM, Setsum
from wal3_core.format.strict_json import INTEGER, SET, TEXT, Stored, member, nested

# The size of a fragment's file, far above what any writer's options allow; a read asks for no more.
BYTES_MAX = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentPointer(Stored):
    """Names a fragment, its range and its checksum.

    ``first_seq_no`` differs from ``seq_no`` only when a compacted fragment replaces several; such a
    fragment may hold fewer records than its range has offsets. ``num_bytes`` is the size of the stored file.
    ``continues`` says that its first record and the last one of the fragment before it belong to one staged append.
    """

    path: str
    first_seq_no: FragmentSeqNo
    seq_no: FragmentSeqNo
    start: LogPosition
    limit: LogPosition
    setsum: Setsum
    num_bytes: int
    num_records: int
    continues: bool = False

    # That of a snapshot of fragments is 1.
    depth: ClassVar[int] = 0
    MEMBERS = (
        member("path", TEXT),
        member("first_seq_no", INTEGER, like="seq_no"),
        member("fragment_seq_no", INTEGER, "seq_no"),
        member("start", nested(LogPosition)),
        member("limit", nested(LogPosition)),
        member("setsum", SETSUM),
        member("num_bytes", INTEGER),
        member("num_records", INTEGER),
        member("continues", SET, default=False),
    )

    def __post_init__(self) -> None:
        """Refuse values that are not integers: true would be taken for 1, and written as true."""
        if not type(self.seq_no) is type(self.first_seq_no) is type(self.num_bytes) is type(self.num_records) is int:
            make_plain(self, first_seq_no=integer, seq_no=integer, num_bytes=integer, num_records=integer)

    @property
    def compacted(self) -> bool:
        """Whether the fragment replaces others, and so may have gaps."""
        return self.num_records != self.limit.offset - self.start.offset or self.first_seq_no != self.seq_no

    def named(self, place: str) -> str:
        """Name it in errors: its number, its records, and where it is stored."""
        return f"fragment {self.seq_no}, offsets {self.start.offset} to {self.limit.offset - 1} ({place})"

    @property
    def last_seq_no(self) -> FragmentSeqNo:
        """The highest seq_no it covers."""
        return self.seq_no

    def check_stored(self, what: str) -> None:
        """Refuse the path of another fragment."""
        del what
        check_fragment_path(self.path, self.seq_no)

    def check(self) -> None:
        """Refuse a range that runs backwards or cannot hold its records."""
        width = self.limit.offset - self.start.offset
        backwards = self.limit.timestamp_us < self.start.timestamp_us or self.first_seq_no > self.seq_no
        if backwards or width <= 0 or self.num_records > width or self.num_bytes > BYTES_MAX:
            raise CorruptError(
                f"fragment {self.seq_no}: expected a range that holds its {self.num_records} records in at most"
                f" {BYTES_MAX} bytes, found {self.start} to {self.limit} in {self.num_bytes}"
            )
