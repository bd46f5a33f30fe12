"""The record of one pass of key compaction: what it replaced, and the setsums that account for every record.

Written before the pass is installed, and never changed. Keeps INV-42.
"""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.errors import InvalidRequestError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import LOG_ID, TOKEN, LogId
from wal3_core.format.setsum import EMPTY, SETSUM, Setsum
from wal3_core.format.snapshot import check_run, sum_setsums
from wal3_core.format.strict_json import INTEGER, SET, TEXT, Stored, StoredDocument, member, nested, several
from wal3_core.options import POINTERS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Stored):
    """Setsums of a pass: of the records below its bound before it, of those after it, and of those it dropped.

    ``merged`` are the records that were written again. Before = after + superseded + expired.
    """

    before: Setsum = EMPTY
    after: Setsum = EMPTY
    superseded: Setsum = EMPTY
    expired: Setsum = EMPTY
    merged: Setsum = EMPTY

    MEMBERS = tuple(member(name, SETSUM) for name in ("before", "after", "superseded", "expired", "merged"))

    @property
    def holds(self) -> bool:
        """Whether every record is accounted for."""
        return self.before == self.after + self.superseded + self.expired


@dataclass(frozen=True, slots=True)
class Replacement(Stored):
    """A run of fragments, ``members``, and the fragment that stands for them from now on."""

    members: tuple[FragmentPointer, ...]
    pointer: FragmentPointer

    MEMBERS = (
        member("members", several(FragmentPointer.from_json, POINTERS_MAX, FragmentPointer.to_json)),
        member("pointer", nested(FragmentPointer)),
    )

    def __post_init__(self) -> None:
        """Refuse a fragment that does not cover exactly the run."""
        run, one = self.members, self.pointer
        covered = run and (run[0].first_seq_no, run[-1].seq_no, run[0].start, run[-1].limit, run[0].continues)
        if covered != (one.first_seq_no, one.seq_no, one.start, one.limit, one.continues):
            message = f"fragment {one.seq_no}: expected to stand for the fragments it replaced, {covered}, found {one}"
            raise InvalidRequestError(message)

    def check_stored(self, what: str) -> None:
        """Refuse fragments that do not follow each other."""
        del what
        check_run(self.members)
        check_run((self.pointer,))


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord(StoredDocument):
    """What a pass did below the offset ``limit``: its ``number`` and ``token``, and those of the pass before it.

    Below ``clean_limit`` each key had one record before. Below ``expired_below`` it left no expired tombstone.
    ``timestamp_us`` is the store's time at which it was planned. ``replacements`` are in log order.

    ``fence`` is that of the manifest when the uploads began, ``policy`` the digest of the policy that it was planned
    by: with another of either, it is not installed. ``partial``: there was more to drop than one pass can record, so it
    leaves nothing clean, and the next one goes on.

    Below ``arranged`` the log is arranged by key after it, 0 if it did not arrange. ``keeps_all``: it was not to drop
    any record, and minds the cursors of writers alone.
    """

    log_id: LogId
    number: int
    token: str
    before: str
    timestamp_us: int
    first: int
    limit: int
    clean_limit: int
    expired_below: int
    num_superseded: int
    num_expired: int
    fence: int
    policy: str
    proof: Proof
    replacements: tuple[Replacement, ...]
    partial: bool = False
    arranged: int = 0
    keeps_all: bool = False

    FORMAT_VERSION = 1
    BYTES_MAX = 64 * 2**20
    MEMBERS = (
        member("log_id", LOG_ID),
        member("number", INTEGER),
        member("token", TOKEN),
        member("before", TOKEN, default=""),
        member("timestamp_us", INTEGER),
        member("first", INTEGER),
        member("limit", INTEGER),
        member("clean_limit", INTEGER),
        member("expired_below", INTEGER),
        member("num_superseded", INTEGER),
        member("num_expired", INTEGER),
        member("fence", INTEGER),
        member("policy", TEXT),
        member("partial", SET, default=False),
        member("arranged", INTEGER, default=0),
        member("keeps_all", SET, default=False),
        member("proof", nested(Proof)),
        member("replacements", several(Replacement.from_json, POINTERS_MAX, Replacement.to_json)),
    )

    def problem(self) -> str | None:
        """Say which of the setsums do not add up; None if all do."""
        members = sum_setsums(member for each in self.replacements for member in each.members)
        merged = sum_setsums(each.pointer for each in self.replacements)
        proof, dropped = self.proof, self.proof.superseded + self.proof.expired
        for what, expected, found in (
            ("all records before it", proof.before, proof.after + dropped),
            ("the records it read", members, merged + dropped),
            ("the records it wrote", proof.merged, merged),
        ):
            if expected != found:
                return f"pass {self.token}: expected setsum {expected} of {what}, found {found}"
        return None

    @property
    def bytes_read(self) -> int:
        """Bytes of the fragments that were merged."""
        return sum(member.num_bytes for each in self.replacements for member in each.members)

    @property
    def bytes_written(self) -> int:
        """Bytes of the fragments that they became."""
        return sum(each.pointer.num_bytes for each in self.replacements)

    @property
    def num_merged(self) -> int:
        """Records in the fragments that they became."""
        return sum(each.pointer.num_records for each in self.replacements)
