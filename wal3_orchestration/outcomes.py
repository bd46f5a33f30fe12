"""What a step found or did for each log, and what its checks say of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster import AssetRecordsFilter, Failure, JsonMetadataValue

from wal3_orchestration.remedies import next_command, section_of
from wal3_orchestration.runbook import address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import AssetKey, DagsterInstance, EventLogRecord, TimestampMetadataValue

    from wal3_core.fleet.outcomes import Refusal
    from wal3_core.model.retried import Retried
    from wal3_orchestration.building import LogCheck
    from wal3_orchestration.scope import Scope

    Value = bool | int | float | str | JsonMetadataValue | TimestampMetadataValue

# Where the work of a step was done, as its metadata says.
HERE, ON_SPARK = "this process", "Spark"
# What a sweep's event of a log begins with, before the id of the run.
RUN = "recorded by run"
# The state of a log at which nothing is left to do. So are the logs that no sweep has recorded yet.
IDLE = "nothing is left to do"
_NAMED_MAX = 10
_STATE_CHARS = 16
# Say how a step was done, not what it found.
_NO_STATE = frozenset({"done_by", "wait_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step found or did for a log, or why it failed there.

    ``state`` identifies what was found; without it, the metadata does. A sweep records a log whose state is not
    the one that was recorded last, and every ``notable`` one; it leaves out the labels in ``implied``, which the log's
    data version or its manifest's event says. ``due_from`` is where the log begins, and which life of it that is, if
    garbage waits to be pruned.
    """

    log: str
    metadata: Mapping[str, Value] = field(default_factory=dict)
    refusal: Refusal | None = None
    state: str | None = None
    notable: bool = False
    implied: tuple[str, ...] = ()
    data_version: str | None = None
    due_from: str | None = None

    @property
    def fingerprint(self) -> str:
        """A short text that is another one when the state is."""
        return fingerprint(self.state) if self.state is not None else fingerprint(json.dumps(self._plain()))

    def _plain(self) -> dict[str, object]:
        return {
            label: getattr(value, "value", value) for label, value in self.metadata.items() if label not in _NO_STATE
        }


def fingerprint(state: str) -> str:
    """Shorten a state: there is one for each log and asset."""
    return hashlib.sha256(state.encode()).hexdigest()[:_STATE_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A check's result for a log; ``problem`` is None when it passed. Only a ``blocking`` failure stops later steps.

    ``log_id`` is the life of the log that was judged, if the verdict is void for another one.
    """

    check: LogCheck
    log: str
    problem: str | None
    blocking: bool = False
    log_id: str | None = None
    details: Mapping[str, Value] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """The URL of the first damaged object."""
        file = self.details.get("file")
        return file if isinstance(file, str) else None


def retried_metadata(retried: Retried | None) -> dict[str, Value]:
    """Say what Spark ran again for a step; nothing where Spark was not used."""
    if retried is None:
        return {}
    return {
        "tasks retried": retried.num_tasks,
        "executors lost": retried.num_executors,
        **({"stages run again": retried.num_stages} if retried.num_stages else {}),
        **({"copies of slow tasks": retried.num_copies} if retried.num_copies else {}),
        **({"retried because": retried.why} if retried.reasons else {}),
    }


class Blocked:
    """The blocking failures of a step's checks: how many, and the first of them."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Verdict] = []

    def add(self, verdict: Verdict) -> None:
        """Count a verdict, if it is a blocking failure."""
        if verdict.blocking and verdict.problem is not None:
            self.count += 1
            if len(self.first) < _NAMED_MAX:
                self.first.append(replace(verdict, details={}))

    def raise_together(self, scope: Scope, total: int) -> None:
        """Fail the step for good, with a sentence, if a blocking check failed: later steps do not start."""
        if not self.count:
            return
        first = self.first[0]
        more = f"; and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        said = "; ".join(f"{verdict.log}: {verdict.check.name}: {verdict.problem}" for verdict in self.first)
        where = address(scope, section_of(first.check, first.problem or ""))
        hint = f". Next: {next_command(scope, first.check, first.log)}. See {where}"
        raise Failure(f"{self.count} of {total} logs: {said}{more}{hint}", allow_retries=False)


def latest(instance: DagsterInstance, key: AssetKey, log: str, *, count: int) -> Sequence[EventLogRecord]:
    """Return a log's newest materializations, newest first."""
    return instance.fetch_materializations(AssetRecordsFilter(key, asset_partitions=[log]), limit=count).records


def run_of(found: EventLogRecord) -> str:
    """Return the id of the run that recorded a materialization."""
    said = "" if found.asset_materialization is None else found.asset_materialization.description or ""
    return said.removeprefix(f"{RUN} ") if said.startswith(RUN) else found.run_id


def executed_again(instance: DagsterInstance, run_id: str) -> set[str]:
    """Return the ids of a run and of those that it executes again."""
    _, runs = instance.get_run_group(run_id) or ("", [])
    return {run_id, *(run.run_id for run in runs)}


def value_of(found: EventLogRecord, label: str) -> object:
    """Return a materialization's metadata value for a label; None when it has none."""
    materialization = found.asset_materialization
    value = None if materialization is None else materialization.metadata.get(label)
    return None if value is None else value.value
