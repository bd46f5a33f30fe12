"""The record of one pass of key compaction: what it replaced, and the setsums that account for every record.

Written before the pass is installed, and never changed. Keeps INV-42.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model import strict_json
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.paths import LogId, check_log_id, check_token
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.model.snapshot import check_run, sum_setsums
from wal3_core.model.splice import Replacement
from wal3_core.model.strict_json import check_format_version
from wal3_core.options import POINTERS_MAX

if TYPE_CHECKING:
    from wal3_core.model.strict_json import Fields, JsonObject

FORMAT_VERSION = 1
BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Setsums of a pass: of the records below its bound before it, of those after it, and of those it dropped.

    ``merged`` are the records that were written again. Before = after + superseded + expired.
    """

    before: Setsum = EMPTY
    after: Setsum = EMPTY
    superseded: Setsum = EMPTY
    expired: Setsum = EMPTY
    merged: Setsum = EMPTY

    @property
    def holds(self) -> bool:
        """Whether every record is accounted for."""
        return self.before == self.after + self.superseded + self.expired

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "before": self.before.hexdigest(),
            "after": self.after.hexdigest(),
            "superseded": self.superseded.hexdigest(),
            "expired": self.expired.hexdigest(),
            "merged": self.merged.hexdigest(),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Proof:
        """Read from a JSON object."""
        names = ("before", "after", "superseded", "expired", "merged")
        proof = cls(**{name: Setsum.from_hexdigest(fields.string(name)) for name in names})
        fields.finish()
        return proof


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
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

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        before: JsonObject = {"before": self.before} if self.before else {}
        optional: JsonObject = {"partial": True} if self.partial else {}
        optional |= {"arranged": self.arranged} if self.arranged else {}
        optional |= {"keeps_all": True} if self.keeps_all else {}
        return strict_json.dump_checksummed(
            {
                "format_version": FORMAT_VERSION,
                "log_id": self.log_id,
                "number": self.number,
                "token": self.token,
                **before,
                "timestamp_us": self.timestamp_us,
                "first": self.first,
                "limit": self.limit,
                "clean_limit": self.clean_limit,
                "expired_below": self.expired_below,
                "num_superseded": self.num_superseded,
                "num_expired": self.num_expired,
                "fence": self.fence,
                "policy": self.policy,
                **optional,
                "proof": self.proof.to_json(),
                "replacements": [
                    {
                        "members": [member.to_json() for member in each.members],
                        "pointer": each.pointer.to_json(),
                    }
                    for each in self.replacements
                ],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> PassRecord:
        """Decode and check; CorruptError names ``what`` when anything is off."""
        fields = strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX)
        check_format_version(fields, FORMAT_VERSION)
        record = cls(
            log_id=check_log_id(fields.string("log_id"), what),
            number=fields.integer("number"),
            token=check_token(fields.string("token"), what),
            before=check_token(fields.string("before"), what) if fields.has("before") else "",
            timestamp_us=fields.integer("timestamp_us"),
            first=fields.integer("first"),
            limit=fields.integer("limit"),
            clean_limit=fields.integer("clean_limit"),
            expired_below=fields.integer("expired_below"),
            num_superseded=fields.integer("num_superseded"),
            num_expired=fields.integer("num_expired"),
            fence=fields.integer("fence"),
            policy=fields.string("policy"),
            proof=Proof.from_json(fields.object("proof")),
            replacements=tuple(
                _replacement(item, what) for item in fields.objects("replacements", count_max=POINTERS_MAX)
            ),
            partial=fields.is_set("partial"),
            arranged=fields.integer("arranged") if fields.has("arranged") else 0,
            keeps_all=fields.is_set("keeps_all"),
        )
        fields.finish()
        return record


def _replacement(fields: Fields, what: str) -> Replacement:
    members = tuple(FragmentPointer.from_json(item) for item in fields.objects("members", count_max=POINTERS_MAX))
    pointer = FragmentPointer.from_json(fields.object("pointer"))
    fields.finish()
    check_run(members)
    check_run((pointer,))
    covered = (members[0].first_seq_no, members[-1].seq_no, members[0].start, members[-1].limit) if members else None
    if covered != (pointer.first_seq_no, pointer.seq_no, pointer.start, pointer.limit):
        message = f"{what}: fragment {pointer.seq_no}: expected to stand for the fragments it replaced, found {covered}"
        raise CorruptError(message)
    return Replacement(members, pointer)
