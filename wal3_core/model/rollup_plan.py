"""The plan of a roll-up: a stretch of a dirty log, and what is decided about each log that is marked in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.model import strict_json
from wal3_core.model.paths import LogId, check_log_id
from wal3_core.model.position import LogPosition
from wal3_core.model.rollup import Decision, MarkedLog, decide

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from wal3_core.model.marker import Marker
    from wal3_core.model.rollup import Looked
    from wal3_core.model.rollup_options import RollUpOptions
    from wal3_core.model.strict_json import Fields, JsonObject

# A plan as text may name that many logs; each takes some 500 bytes.
_LOGS_MAX = 1_000_000
_BYTES_MAX = 2**29


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of one life of a dirty log: from its cursor to ``limit``, exclusive.

    ``generation`` is the cursor's version, 0 when there was none. ``skipped`` markers were collected before they were
    read, which only a cursor that was deleted or moved by hand allows.
    """

    dirty_log: str
    log_id: LogId
    generation: int
    start: int
    limit: LogPosition
    skipped: int = 0

    @property
    def num_markers(self) -> int:
        """How many markers it holds."""
        return self.limit.offset - self.start

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "dirty_log": self.dirty_log,
            "log_id": self.log_id,
            "generation": self.generation,
            "start": self.start,
            "limit": self.limit.to_json(),
            "skipped": self.skipped,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Stretch:
        """Read from a JSON object."""
        stretch = cls(
            dirty_log=fields.string("dirty_log"),
            log_id=check_log_id(fields.string("log_id"), fields.what),
            generation=fields.integer("generation"),
            start=fields.integer("start"),
            limit=LogPosition.from_json(fields.object("limit")),
            skipped=fields.integer("skipped"),
        )
        fields.finish()
        return stretch


@dataclass(frozen=True, slots=True)
class RollUpTime:
    """The time by which a roll-up computes ages: the store's, unless ``guessed`` says why that is not known."""

    now_us: int = 0
    guessed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollUpPlan:
    """What a roll-up found, and what it decided; nothing was changed for it.

    ``now_us`` is the store's time, unless ``guessed`` says why it is not known: then ages are by the clock of the
    machine that read, and nothing is overdue. ``logs`` has one entry for each life of a marked log, in the order of
    their names.
    """

    stretch: Stretch
    now_us: int
    logs: tuple[MarkedLog, ...]
    guessed: str | None = None

    @property
    def selected(self) -> tuple[str, ...]:
        """The logs to be maintained now."""
        return tuple(each.log for each in self._with(Decision.SELECTED))

    @property
    def dirty(self) -> tuple[MarkedLog, ...]:
        """The logs with unprocessed records, selected or not."""
        return tuple(self._with(Decision.SELECTED, Decision.KEPT))

    @property
    def unreadable(self) -> tuple[MarkedLog, ...]:
        """The logs that are damaged or denied, each with its error as the reason; they stay marked."""
        return tuple(self._with(Decision.UNREADABLE))

    @property
    def over(self) -> tuple[str, ...]:
        """The logs with more than ``unprocessed_max`` unprocessed records."""
        return tuple(each.log for each in self.logs if each.over)

    @property
    def num_records(self) -> int:
        """How many records are unprocessed."""
        return sum(each.num_records for each in self.logs)

    @property
    def num_bytes(self) -> int:
        """About how many stored bytes are unprocessed."""
        return sum(each.num_bytes for each in self.logs)

    @property
    def age_s(self) -> float:
        """The age of the oldest unprocessed record, in seconds since it was marked; 0 when there is none."""
        return max((each.age_s for each in self.dirty), default=0.0)

    def counts(self) -> dict[Decision, int]:
        """Count the logs by decision."""
        return {decision: sum(1 for _ in self._with(decision)) for decision in Decision}

    def left(self, handled: Collection[str]) -> list[Marker]:
        """Return the markers to append again when these logs are taken care of."""
        kept = (each.left(handled=each.log in handled) for each in self.logs)
        return [marker for marker in kept if marker is not None]

    def _with(self, *decisions: Decision) -> Iterator[MarkedLog]:
        return (each for each in self.logs if each.decision in decisions)

    def to_json(self) -> JsonObject:
        """Return as a JSON object, from which ``from_text`` makes the plan again."""
        guessed: JsonObject = {} if self.guessed is None else {"guessed": self.guessed}
        return {
            "stretch": self.stretch.to_json(),
            "now_us": self.now_us,
            **guessed,
            "logs": [each.to_json() for each in self.logs],
        }

    @classmethod
    def from_text(cls, text: str) -> RollUpPlan:
        """Read what ``to_json`` returns, as text."""
        fields = strict_json.load(text.encode(), what="roll-up", bytes_max=_BYTES_MAX)
        plan = cls(
            stretch=Stretch.from_json(fields.object("stretch")),
            now_us=fields.integer("now_us"),
            guessed=fields.string("guessed") if fields.has("guessed") else None,
            logs=tuple(map(MarkedLog.from_json, fields.objects("logs", count_max=_LOGS_MAX))),
        )
        fields.finish()
        return plan


def plan_of(
    stretch: Stretch, looked: Iterable[tuple[Marker, Looked]], time: RollUpTime, options: RollUpOptions
) -> RollUpPlan:
    """Decide about each folded marker of a stretch."""
    decided = (decide(marker, log, time.now_us, options) for marker, log in looked)
    if time.guessed is not None:
        # Selecting a log too early is harmless; moving its fence by a wrong clock would cost its writer an upload.
        decided = (replace(each, overdue=False) for each in decided)
    logs = tuple(sorted(decided, key=lambda each: (each.log, each.marker.life)))
    return RollUpPlan(stretch=stretch, now_us=time.now_us, logs=logs, guessed=time.guessed)


def by_log(folded: Mapping[tuple[str, str], Marker]) -> list[list[Marker]]:
    """Group folded markers by log, in the order of the names: each log is looked up once, whatever its lives."""
    grouped: dict[str, list[Marker]] = {}
    for (log, _), marker in sorted(folded.items()):
        grouped.setdefault(log, []).append(marker)
    return list(grouped.values())
