"""Records what a step found in Dagster: each log by its partition, and the store as a whole.

A run of an asset records each of its logs. A sweep records one materialization without a partition, which sums up
the run, and reports the logs whose state is not the one that was recorded last, each with the id of the run. So
what Dagster stores follows what was written, not how many logs there are; and what a sweep holds in memory does not
either, as it records slice by slice.

What a check found bad is remembered at once, and stands until a step finds it good that knew of it when it began: runs
may be at work on a log at once, and a slow one may have judged what was there before.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
    DataVersion,
    EventLogRecord,
    MaterializeResult,
    MetadataValue,
    Output,
    TableMetadataValue,
)

from wal3_core.errors import LogError, UnavailableError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.framework.checks import (
    CheckFindings,
    CheckResult,
    LogCheck,
    Value,
    checks_of,
    evaluate,
    observe_bad,
    retried_metadata,
    rows_of,
    table,
)
from wal3_orchestration.framework.log_records import NOTHING, KnownProblem, LogRecord, LogRecords
from wal3_orchestration.framework.readable import beside, duration, is_number, size
from wal3_orchestration.framework.runbook import Section, address, command
from wal3_orchestration.framework.scope import REASON_TAG, ROLLED_UP
from wal3_orchestration.framework.step import SAID_ONCE, Failures, Step, slices
from wal3_orchestration.framework.store import read_states, require_few_lost

if TYPE_CHECKING:
    Event = AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation

# What a sweep's event of a log begins with, before the id of the run.
RUN = "recorded by run"
# The state of a log at which nothing is left to do. So are the logs that no sweep has recorded yet.
IDLE = "nothing is left to do"
_STATE_CHARS = 16
# Labels that say how a step was done, not what it found.
_NO_STATE = frozenset({"done_by", "wait_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """What a step found or did for a log, or why it failed there.

    ``state`` identifies what was found; without it, the metadata does. A sweep records a log whose state is not
    the one that was recorded last, and every ``notable`` one; it leaves out the labels in ``implied``, which the log's
    data version or its manifest's event says. ``due_from`` is where the log begins, and which life of it that is, if
    garbage waits to be pruned. ``figures`` are those by which the fleet's logs are compared.
    """

    log: str
    metadata: Mapping[str, Value] = field(default_factory=dict)
    refusal: Refusal | None = None
    state: str | None = None
    notable: bool = False
    implied: tuple[str, ...] = ()
    data_version: str | None = None
    due_from: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """A short text that is another one when the state is."""
        if self.state is not None:
            return fingerprint(self.state)
        found = {label: value for label, value in self.metadata.items() if label not in _NO_STATE}
        return fingerprint(json.dumps({label: getattr(value, "value", value) for label, value in found.items()}))


def fingerprint(state: str) -> str:
    """Shorten a state: there is one for each log and asset."""
    return hashlib.sha256(state.encode()).hexdigest()[:_STATE_CHARS]


def known_problems(step: Step, check: LogCheck) -> dict[str, KnownProblem]:
    """Return what a check has found wrong with the step's logs, and not found right since."""
    records = step.records(check.asset).items()
    return {log: record.problems[check.name] for log, record in records if check.name in record.problems}


def refused(log: str, check: LogCheck, known: KnownProblem, kind: type[LogError]) -> LogResult:
    """Return the result of a log that is left alone, and fails the step, because a check has found it bad."""
    return LogResult(log=log, refusal=Refusal(kind=kind.__name__, message=f"{check.name}: {known.problem}"))


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


# Rows of a summary; each of these logs has an event of its own, too.
_RECORDED_ROWS_MAX = 10
# The numbers that can be added up over logs.
_ADDED = (
    "records",
    "bytes",
    "fragments",
    "snapshots",
    "steps",
    "objects",
    "orphans",
    "garbage_documents",
    "due",
    "superseded",
    "expired",
    "pending",
    "leased",
    "dead",
    "without_cursor",
)
# The numbers that are worth following; a label of a cursor begins with the first of its parts. The others are constants
# of a log, or only rise.
_PLOTTED = {*_ADDED, "lag", "fraction (of bytes)", "oldest due (s)"}


class SweepTotals:
    """The sums of a sweep: over the logs that are done, of which those that are new have events of their own."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_new = 0
        self._totals: Counter[str] = Counter()
        self._first: list[LogResult] = []
        self._labels: set[str] = set()

    def add(self, done: Sequence[LogResult], new: Sequence[LogResult]) -> None:
        """Add what was found of some logs."""
        self.num_done += len(done)
        self.num_new += len(new)
        for each in done:
            numbers = {label: each.metadata[label] for label in _ADDED if label in each.metadata}
            # Also a label whose sum is zero is shown.
            self._totals.update(
                {label: int(value) if isinstance(value, int) else 0 for label, value in numbers.items()}
            )
        self._labels.update(*(each.metadata for each in new))
        self._first += new[: _RECORDED_ROWS_MAX - len(self._first)]

    def metadata(self) -> dict[str, Any]:
        """Return the totals, where the work was done, and the numbers of the first new logs as a table."""
        labels = [label for label in _ADDED if label in self._labels]
        rows = [(each.log, *(str(each.metadata.get(label, "")) for label in labels)) for each in self._first]
        totals = {f"total {label}": self._totals[label] for label in _ADDED if label in self._totals}
        first = {"first recorded": MetadataValue.md(table(("log", *labels), rows))} if rows else {}
        return {**totals, **beside(totals), **first}


# Labels of a log's figures: what it holds, how far its slowest consumer is behind, where its next record comes, and of
# the time before: when that was recorded, how many records came since the time before that, and when that was.
BYTES, BEHIND, NEXT = "bytes", "behind", "next"
_AT_S, _GREW, _SINCE_S = "at_s", "grew", "since_s"
# Rows of each table of the fleet.
RANKED_MAX = 50
_HOUR_S = 60 * 60


class Ranking:
    """The logs of the fleet that are most behind, largest, and fastest, by the figures that were recorded last."""

    def __init__(self) -> None:
        self._now_s = shared_runtime().now_us() / US_PER_S
        self._first: dict[str, list[tuple[float, str, Mapping[str, float]]]] = {}

    def _per_hour(self, figures: Mapping[str, float]) -> float:
        """Return how many records an hour a log has taken since the record before its last one, until now."""
        return figures[_GREW] * _HOUR_S / max(1.0, self._now_s - figures[_SINCE_S])

    def add(self, log: str, figures: Mapping[str, float]) -> None:
        """Rank a log."""
        if not figures:
            return
        ranked = {"most behind": figures[BEHIND], "largest": figures[BYTES], "fastest": self._per_hour(figures)}
        for label, value in ranked.items():
            first = self._first.setdefault(label, [])
            if value > 0:
                item = (value, log, figures)
                (heapq.heappush if len(first) < RANKED_MAX else heapq.heappushpop)(first, item)

    def metadata(self) -> dict[str, TableMetadataValue]:
        """Return a table for each ranking."""
        return {
            label: rows_of(
                ("log", "records behind", "size", "records an hour", "recorded"),
                [self._row(log, figures) for _, log, figures in sorted(first, key=lambda each: (-each[0], each[1]))],
            )
            for label, first in self._first.items()
            if first
        }

    def _row(self, log: str, figures: Mapping[str, float]) -> tuple[str | float, ...]:
        ago = f"{duration(max(0.0, self._now_s - figures[_AT_S]))} ago"
        return log, int(figures[BEHIND]), size(figures[BYTES]), round(self._per_hour(figures)), ago


def _figures(result: LogResult, old: LogRecord) -> Mapping[str, float]:
    """Return a log's new figures, with how much it grew since the old ones."""
    if not result.figures or (old.figures and result.fingerprint == old.state):
        return old.figures
    now_s = round(shared_runtime().now_us() / US_PER_S)
    before = old.figures or {NEXT: result.figures[NEXT], _AT_S: now_s}
    # The name may have another log by now.
    grew = max(0.0, result.figures[NEXT] - before[NEXT])
    return {**result.figures, _AT_S: now_s, _GREW: grew, _SINCE_S: before[_AT_S]}


# Stores with more logs than this have too many labels for the page that plots them.
PLOTTED_LOGS_MAX = 50


class Recorder:
    """Takes what a step finds, and records it in Dagster; of a sweep, it keeps sums and the first failures only.

    ``failures`` are those of the logs that have failed so far. Logs that a sweep finds gone do not count.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._records = LogRecords(step.scope, step.instance, step.asset)
        self._gone: set[str] = set()
        self._totals = SweepTotals()
        self._plotted: list[LogResult] | None = [] if len(self._known()) <= PLOTTED_LOGS_MAX else None
        # A run of chosen logs records them at its end, and remembers them then.
        self._chosen: list[LogResult] = []
        # The log and check of each problem that is known as the step begins, and the step that found it.
        self._known_before = {
            (log, check, known.found_by)
            for some in slices(step.logs)
            for log, record in self._records.load(some).items()
            for check, known in record.problems.items()
        }
        # A sweep evaluates each check: Dagster shows one that is older than the newest materialization as none.
        checks = checks_of(step.asset) if step.swept else ()
        self._found = {check.name: CheckFindings(check=check) for check in checks}
        self.failures = Failures()
        self._blocked = Failures()
        self._first_blocked: CheckResult | None = None

    def add(self, results: Sequence[LogResult], judged: Sequence[CheckResult] = ()) -> None:
        """Take what was found of some logs, and remember it for each; a sweep records those that changed now."""
        failed = {each.log for each in results if each.refusal is not None}
        failed |= {each.log for each in judged if each.problem is not None}
        self._gone |= gone_logs(self._step, failed, self._gone)
        left = [each for each in judged if each.log not in self._gone]
        for each in left:
            self._found.setdefault(each.check.name, CheckFindings(check=each.check)).judge(each)
            if each.blocking and each.problem is not None:
                self._first_blocked = self._first_blocked or each
                self._blocked.add(each.log, Refusal(kind="", message=f"{each.check.name}: {each.problem}"))
        self._take([each for each in results if each.log not in self._gone], left)

    def _take(self, results: Sequence[LogResult], judged: Sequence[CheckResult]) -> None:
        before = self._records.load(dict.fromkeys([*(o.log for o in results), *(v.log for v in judged)]))
        for each in results:
            if each.refusal is not None:
                self.failures.add(each.log, each.refusal)
        done = [each for each in results if each.refusal is None]
        new = [each for each in done if not self._step.swept or _is_new(each, before.get(each.log, NOTHING).state)]
        if self._plotted is not None:
            self._plotted += new
        by = f"{self._step.context.run.run_id}/{self._step.context.retry_number}"
        with_result = {each.log for each in results}
        self._records.save(_judged(judged, before, with_result, known=self._known_before, by=by))
        if self._step.swept:
            self._totals.add(done, new)
            self._report(new)
            self._remember(results)
        else:
            self._chosen += results

    def _remember(self, results: Sequence[LogResult]) -> None:
        """Remember the states, beside the problems that are known by now."""
        self._records.save(_states(results, self._records.load(each.log for each in results)))

    def _report(self, new: Iterable[LogResult]) -> None:
        """Report, and do not yield: an event of a run is larger by a kilobyte, and each is stored twice."""
        step, why = self._step, _why(self._step)
        for each in new:
            step.instance.report_runless_asset_event(_materialization(step, each, why, by=step.context.run_id))

    def finish(self) -> Iterator[Event]:
        """Record the step as a whole, and what the checks of the whole store say now."""
        step = self._step
        said = {**_why(step), **retried_metadata(step.work.retried)}
        ranking = self._know()
        if step.swept:
            yield self._summary({**step.work.said(), **said}, ranking)
        else:
            yield from _chosen(step, [each for each in self._chosen if each.refusal is None], said)
        yield from (_over_time(step, each) for each in self._plotted or ())
        if not step.swept:
            yield from (observe_bad(step.scope, each) for found in self._found.values() for each in found.here.values())
        self._remember(self._chosen)
        yield from self._checks()

    def fail(self, section: Section) -> None:
        """Fail the step if any log failed, or a blocking check did; for good, unless a failure is transient.

        A step of a sweep that others come after fails only to be repeated: they leave such a log alone, and fail.
        """
        step, num_logs = self._step, len(self._step.logs) - len(self._gone)
        hint = f". See {address(step.scope, section)}"
        if self.failures.transient:
            self.failures.raise_together(num_logs, hint=hint)
        if step.last or not step.swept:
            self._fail_blocked()
            self.failures.raise_together(num_logs, hint=hint)

    def _fail_blocked(self) -> None:
        """Fail the step for good if a blocking check failed: later steps do not start."""
        scope, first = self._step.scope, self._first_blocked
        if first is not None:
            where = address(scope, first.check.section_of(first.problem or ""))
            hint = f". Next: {command(scope, first.check.next_command, first.log)}. See {where}"
            self._blocked.raise_together(len(self._step.logs), hint=hint)

    def _known(self) -> list[str]:
        return [log for log in self._step.scope.known_logs(self._step.instance) if log not in self._gone]

    def _summary(self, said: Mapping[str, Value], ranking: Ranking) -> AssetMaterialization:
        step, totals = self._step, self._totals
        num_logs = sum(log not in self._gone for log in step.logs)
        failed = table(("log", "why"), list(self.failures.first.items()))
        return AssetMaterialization(
            step.key,
            description=f"{num_logs} logs, {totals.num_new} of them recorded, {num_logs - totals.num_done} not done",
            metadata={
                "logs": num_logs,
                "recorded": totals.num_new,
                "not done": num_logs - totals.num_done,
                **({"gone": len(self._gone)} if self._gone else {}),
                **totals.metadata(),
                **said,
                **ranking.metadata(),
                **({"failed": MetadataValue.md(failed)} if self.failures.count else {}),
            },
        )

    def _know(self) -> Ranking:
        """Take what is known of all logs."""
        ranking = Ranking()
        for some in slices(self._known()):
            records = self._records.load(some)
            for log in some:
                known = records.get(log, NOTHING)
                ranking.add(log, known.figures)
                for each in self._found.values():
                    each.know(log, known)
        return ranking

    def _checks(self) -> Iterator[Event]:
        step, found = self._step, self._found.values()
        if not step.swept:
            for each in found:
                yield Output(None, output_name=each.check.build(step.scope).get_python_identifier())
        yield from (evaluate(step.scope, each, step.work.retried) for each in found)


def _chosen(step: Step, done: Sequence[LogResult], said: Mapping[str, Value]) -> Iterator[Event]:
    """Record each log; if one is missing, log by log, so that nothing downstream starts."""
    if len(done) < len(step.logs):
        yield from (_materialization(step, each, said) for each in done)
        return
    for each in done:
        metadata = {**each.metadata, **beside(each.metadata), **said}
        step.context.add_asset_metadata(metadata, partition_key=each.log)  # type: ignore[union-attr]  # not swept
    version = _data_version(done)
    yield MaterializeResult() if version is None else MaterializeResult(data_version=version)


def _is_new(result: LogResult, known: str) -> bool:
    return result.notable or not (result.fingerprint == known or (result.state == IDLE and not known))


def _materialization(
    step: Step, result: LogResult, said: Mapping[str, Value], *, by: str | None = None
) -> AssetMaterialization:
    """Return a log's event; for a sweep, short enough that SQLite stores two to a page, or three."""
    metadata = result.metadata
    if by is not None:
        left_out = {*result.implied, SAID_ONCE}
        metadata = {label: value for label, value in metadata.items() if value and label not in left_out}
    return AssetMaterialization(
        step.key,
        partition=result.log,
        description=None if by is None else f"{RUN} {by}",
        metadata={**metadata, **said},
        tags=_version_tag(result),
    )


def _why(step: Step) -> dict[str, Value]:
    """Name the roll-up of dirty logs that asked for the run, if one did."""
    reason = step.context.run.tags.get(REASON_TAG, "")
    return {"why": reason} if reason.startswith(ROLLED_UP) else {}


def _version_tag(result: LogResult) -> dict[str, str] | None:
    return None if result.data_version is None else {"dagster/data_version": result.data_version}


def _data_version(done: Sequence[LogResult]) -> DataVersion | None:
    """Return the log's data version; a run over several logs can carry only one, made from all of theirs."""
    if not done or done[0].data_version is None:
        return None
    if len(done) == 1:
        return DataVersion(done[0].data_version)
    versions = "\n".join(f"{each.log} {each.data_version}" for each in done)
    return DataVersion(hashlib.sha256(versions.encode()).hexdigest())


def _over_time(step: Step, result: LogResult) -> AssetObservation:
    """Put the log's name into the labels: Dagster plots a label over time, mixing the partitions that share it."""
    numbers = {
        f"{result.log}: {label}": value
        for label, value in result.metadata.items()
        if is_number(value) and label.partition("/")[0] in _PLOTTED
    }
    return AssetObservation(step.key, partition=result.log, metadata=numbers, tags=_version_tag(result))


def _judged(
    judged: Iterable[CheckResult],
    before: Mapping[str, LogRecord],
    with_result: set[str],
    *,
    known: Collection[object],
    by: str,
) -> dict[str, LogRecord]:
    """Return the new record of each log whose problems are other ones now: a good result ends only ``known`` ones."""
    after: dict[str, LogRecord] = {}
    for each in judged:
        old = after.get(each.log) or before.get(each.log, NOTHING)
        problems, name = dict(old.problems), each.check.name
        if each.problem is not None:
            problems[name] = KnownProblem(
                problem=each.problem, blocking=each.blocking, file=each.file, log_id=each.log_id, found_by=by
            )
        elif name in problems and (each.log, name, problems[name].found_by) in known:
            del problems[name]
        # Refused by a check: what is found once it no longer is, is new.
        state = old.state if each.log in with_result else ""
        after[each.log] = replace(old, problems=problems, state=state)
    return {log: record for log, record in after.items() if record != before.get(log, NOTHING)}


def _states(results: Sequence[LogResult], before: Mapping[str, LogRecord]) -> dict[str, LogRecord]:
    """Return the new record of each log whose state is another one now."""
    found = {each.log: each for each in results}
    after = {
        log: replace(old, **_state(each, old)) for log, each in found.items() for old in [before.get(log, NOTHING)]
    }
    return {log: record for log, record in after.items() if record != before.get(log, NOTHING)}


def _state(result: LogResult, old: LogRecord) -> dict[str, Any]:
    if result.refusal is not None and result.state is None:
        return {}
    if result.state == IDLE and not old.state:
        return {}
    number = old.number + (result.fingerprint != old.state)
    due: dict[str, Any] = {"due_s": 0.0, "due_from": ""}
    if result.due_from is not None:
        waits = bool(old.due_s) and old.due_from == result.due_from
        due_s = old.due_s if waits else shared_runtime().now_us() / US_PER_S
        due = {"due_s": due_s, "due_from": result.due_from}
    return {"state": result.fingerprint, "number": number, "figures": _figures(result, old), **due}


def gone_logs(step: Step, failed: Collection[str], before: Collection[str]) -> set[str]:
    """Return those of a sweep's logs that failed because they no longer exist; one look at each that failed.

    A log of which fragments are left is not gone, but damaged. Failure when so many are gone, with those found gone
    ``before``, that it is more likely a fault of the store.
    """
    if not step.swept or not failed:
        return set()
    try:
        store = step.open()
        gone = set(failed) - {state.log for state in read_states(store, sorted(failed))}
    except UnavailableError:
        # The step fails for these, or is repeated.
        return set()
    if gone:
        known = step.scope.known_logs(step.instance)
        vanished = sorted((gone | set(before)) & set(known))
        require_few_lost(step.scope, store, known, vanished, step.scope.store(step.context))
    return gone
