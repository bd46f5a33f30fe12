"""What scrubbing a log, or a range of it, found; reports of adjoining ranges add up to one of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.model import strict_json
from wal3_core.model.paths import MANIFEST, check_log_id, life_folder
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.options import POINTERS_MAX
from wal3_core.storage.object_store import log_store, object_url

if TYPE_CHECKING:
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore

_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad object: its path in the log, and what was expected and found."""

    path: str
    message: str

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {"path": self.path, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubReport:
    """What scrubbing one log found; counts are of what was read and is sound.

    It covers the whole fragments from ``first_offset`` to ``next_offset``, where the next range
    begins; the log ended at ``end_offset`` then. ``setsum`` is the log's own, ``found`` that of what was
    read, and ``covered`` that of all that was pruned or read: None when the range began further on, or when something
    was collected or replaced before it was read. Records that were dropped above ``next_offset`` are pruned, too; where
    there are any, ``pruned`` is the log's. ``asked_offset`` is where the range was to begin, if that is inside its
    first fragment.
    """

    log: str
    setsum: str
    num_records: int
    num_bytes: int
    num_fragments: int
    num_snapshots: int
    problems: tuple[Problem, ...]
    log_id: str = ""
    first_offset: int = 0
    next_offset: int = 0
    end_offset: int = 0
    found: str = EMPTY.hexdigest()
    covered: str | None = None
    pruned: str | None = None
    asked_offset: int | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    @property
    def finished(self) -> bool:
        """Whether it reaches the log's end."""
        return self.next_offset >= self.end_offset

    @property
    def balanced(self) -> bool:
        """Whether what was pruned and what was read sum to the log's setsum, which covers every record."""
        return self.sound and self.finished and self.covered == self.setsum

    def __add__(self, behind: ScrubReport) -> ScrubReport:
        """Join the report of the range behind this one, and compare the setsums where both cover the log.

        InvalidRequestError when the other is of another log, or begins elsewhere. It may begin
        further on if the log does by then: what lay between was collected. A snapshot that both
        ranges touch counts twice, and so does a fragment that stands for both ends of the ranges by then. After a
        compaction between the two, setsums are not compared.
        """
        collected = behind.covered is not None and behind.first_offset > self.next_offset
        same = (behind.log, behind.log_id) == (self.log, self.log_id)
        adjoins = behind.first_offset == self.next_offset
        if not same or not (adjoins or behind.asked_offset == self.next_offset or collected):
            message = (
                f"scrub of log {self.log}: expected a report that goes on at {self.next_offset}, found one of"
                f" log {behind.log} {behind.log_id} from {behind.first_offset}"
            )
            raise InvalidRequestError(message)
        covered = None
        if adjoins and self.covered is not None and self.pruned == behind.pruned:
            covered = _sum(self.covered, behind.found)
        joined = replace(
            behind,
            num_records=self.num_records + behind.num_records,
            num_bytes=self.num_bytes + behind.num_bytes,
            num_fragments=self.num_fragments + behind.num_fragments,
            num_snapshots=self.num_snapshots + behind.num_snapshots,
            problems=tuple(dict.fromkeys((*self.problems, *behind.problems))),
            first_offset=self.first_offset,
            found=_sum(self.found, behind.found),
            covered=behind.covered or covered,
            asked_offset=self.asked_offset,
        )
        return joined.weighed()

    def weighed(self) -> ScrubReport:
        """Return it with one more problem if its setsums contradict each other and no other problem explains that."""
        if self.problems or not self.finished or self.covered in {None, self.setsum}:
            return self
        message = f"log: expected setsum {self.setsum}, found {self.covered} in what was read and pruned"
        return replace(self, problems=(Problem(MANIFEST, message),))

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        covered: JsonObject = {} if self.covered is None else {"covered": self.covered}
        return {
            "log": self.log,
            "log_id": self.log_id,
            "sound": self.sound,
            "setsum": self.setsum,
            "num_records": self.num_records,
            "num_bytes": self.num_bytes,
            "num_fragments": self.num_fragments,
            "num_snapshots": self.num_snapshots,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "end_offset": self.end_offset,
            "found": self.found,
            **covered,
            **({} if self.pruned is None else {"pruned": self.pruned}),
            **({} if self.asked_offset is None else {"asked_offset": self.asked_offset}),
            "problems": [problem.to_json() for problem in self.problems],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> ScrubReport:
        """Read what ``to_json`` showed, as JSON text; CorruptError when it is something else."""
        fields = strict_json.load(data, what="scrub report", bytes_max=_BYTES_MAX)
        fields.flag("sound")
        report = cls(
            log=fields.string("log"),
            log_id=fields.string("log_id"),
            setsum=Setsum.from_hexdigest(fields.string("setsum")).hexdigest(),
            num_records=fields.integer("num_records"),
            num_bytes=fields.integer("num_bytes"),
            num_fragments=fields.integer("num_fragments"),
            num_snapshots=fields.integer("num_snapshots"),
            first_offset=fields.integer("first_offset"),
            next_offset=fields.integer("next_offset"),
            end_offset=fields.integer("end_offset"),
            found=Setsum.from_hexdigest(fields.string("found")).hexdigest(),
            covered=Setsum.from_hexdigest(fields.string("covered")).hexdigest() if fields.has("covered") else None,
            pruned=Setsum.from_hexdigest(fields.string("pruned")).hexdigest() if fields.has("pruned") else None,
            asked_offset=fields.integer("asked_offset") if fields.has("asked_offset") else None,
            problems=tuple(
                Problem(problem.string("path"), problem.string("message"))
                for problem in fields.objects("problems", count_max=POINTERS_MAX)
            ),
        )
        fields.finish()
        return report


def place_of_object(store: ObjectStore, report: ScrubReport, problem: Problem) -> str:
    """Return where a problem's object is stored: a URL without options."""
    life = life_folder(check_log_id(report.log_id, "report")) if report.log_id and problem.path != MANIFEST else ""
    return object_url(log_store(store, report.log), f"{life}{problem.path}")


def _sum(one: str, other: str) -> str:
    return (Setsum.from_hexdigest(one) + Setsum.from_hexdigest(other)).hexdigest()
