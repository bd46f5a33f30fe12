"""What a damaged object means for its log: where it is stored, and which offsets cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import place_of_object
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core import ScrubReport
    from wal3_core.log.read.scrub import Problem
    from wal3_core.model.snapshot import Pointer
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore

Ranges = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A problem, the URL of its object, and the object's offsets: first and limit; None for what holds no records."""

    problem: Problem
    file: str
    offsets: tuple[int, int] | None = None

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        start, limit = self.offsets or (None, None)
        return {**self.problem.to_json(), "file": self.file, "start_offset": start, "limit_offset": limit}

    @property
    def offsets_text(self) -> str:
        """The first and the last offset; empty when there are none."""
        return "" if self.offsets is None else f"{self.offsets[0]} to {self.offsets[1] - 1}"

    def __str__(self) -> str:
        """Say what is wrong, where the object is unless the problem names it, and which records it holds."""
        file = "" if self.file in self.problem.message else f"file {self.file}"
        offsets = f"offsets {self.offsets_text}" if self.offsets else ""
        further = ", ".join(filter(None, (file, offsets)))
        return f"{self.problem.message} ({further})" if further else self.problem.message


def locate(store: ObjectStore, report: ScrubReport, problems: Sequence[Problem]) -> list[Damage]:
    """Find where the objects of a report's problems are stored, and their offsets, from the log's manifest."""
    found = try_log(partial(_ranges, store, report.log), {problem.path for problem in problems})
    # The manifest itself may be what is damaged.
    ranges = {} if isinstance(found, LogError) else found
    return [
        Damage(problem=problem, file=place_of_object(store, report, problem), offsets=ranges.get(problem.path))
        for problem in problems
    ]


def _ranges(store: ObjectStore, log: str, paths: set[str]) -> Ranges:
    """Return the offsets of the objects that a manifest leads to."""
    reader, ranges = LogReader.open(store, log), Ranges()
    manifest = reader.manifest()

    def see(pointer: Pointer, _damage: object = None) -> None:
        if pointer.path in paths:
            ranges[pointer.path] = (pointer.start.offset, pointer.limit.offset)

    for pointer in reader.walk(manifest, None, UNLIMITED, on_damage=see):
        see(pointer)
    return ranges
