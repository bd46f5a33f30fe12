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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckEvaluation,
    AssetMaterialization,
    AssetObservation,
    DataVersion,
    MaterializeResult,
    MetadataValue,
    Output,
)

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.failures import Failures
from wal3_orchestration.gone import gone_logs
from wal3_orchestration.jobs import REASON_TAG
from wal3_orchestration.log_records import NOTHING, KnownProblem, LogRecord, LogRecords
from wal3_orchestration.outcomes import IDLE, RUN, Blocked, retried_metadata
from wal3_orchestration.partitions import ROLLED_UP
from wal3_orchestration.runbook import address
from wal3_orchestration.store_checks import CheckFindings, evaluate, table
from wal3_orchestration.sums import SAID_ONCE, Sums
from wal3_orchestration.work import slices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.model.retried import Retried
    from wal3_orchestration.outcomes import Outcome, Value, Verdict
    from wal3_orchestration.runbook import Section
    from wal3_orchestration.work import Work

    Event = AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation

# Stores with more logs than this have too many labels for the page that plots them.
PLOTTED_LOGS_MAX = 50
# A sweep over some logs records that a check still passes at most so often: each evaluation is stored three times.
PASSED_S = 6 * 60 * 60


class Recorder:
    """Takes what a step finds, and records it in Dagster; of a sweep, it keeps sums and the first failures only.

    ``failures`` and ``blocked`` are those of the logs that have failed so far. Logs that a sweep finds gone do not
    count.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._records = LogRecords(work.scope, work.instance, work.asset)
        self._gone: set[str] = set()
        self._sums = Sums()
        self._plotted: list[Outcome] | None = [] if len(self._known()) <= PLOTTED_LOGS_MAX else None
        # A run of chosen logs records them at its end, and remembers them then.
        self._chosen: list[Outcome] = []
        self._unsaved: list[Outcome] = []
        self._known_before = _stamps(
            record for some in slices(work.logs) for record in self._records.load(some).items()
        )
        self._found: dict[str, CheckFindings] = {}
        self._retried: Retried | None = None
        self.failures = Failures()
        self.blocked = Blocked()

    def add(
        self, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict] = (), *, retried: Retried | None = None
    ) -> None:
        """Take what was found of some logs, and remember it for each; a sweep records those that changed now.

        ``retried`` is what Spark ran again for it, if it was used.
        """
        if retried is not None:
            self._retried = retried if self._retried is None else self._retried + retried
        failed = {each.log for each in outcomes if each.refusal is not None}
        failed |= {each.log for each in verdicts if each.problem is not None}
        self._gone |= gone_logs(self._work, failed, self._gone)
        left = [each for each in verdicts if each.log not in self._gone]
        self._judge(left)
        self._take([each for each in outcomes if each.log not in self._gone], left)

    def _judge(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            self._found.setdefault(verdict.check.name, CheckFindings(check=verdict.check)).judge(verdict)
            self.blocked.add(verdict)

    def _take(self, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> None:
        before = self._records.load(dict.fromkeys([*(o.log for o in outcomes), *(v.log for v in verdicts)]))
        for each in outcomes:
            if each.refusal is not None:
                self.failures.add(each.log, each.refusal)
        done = [each for each in outcomes if each.refusal is None]
        new = [each for each in done if not self._work.swept or _is_new(each, before)]
        if self._plotted is not None:
            self._plotted += new
        by = f"{self._work.context.run.run_id}/{self._work.context.retry_number}"
        with_outcome = {each.log for each in outcomes}
        self._records.save(_judged(verdicts, before, with_outcome, known=self._known_before, by=by))
        if self._work.swept:
            self._sums.add(done, new)
            self._report(new)
            self._remember(outcomes)
        else:
            self._chosen += done
            self._unsaved += outcomes

    def _remember(self, outcomes: Sequence[Outcome]) -> None:
        """Remember the states, beside the problems that are known by now."""
        self._records.save(_states(outcomes, self._records.load(each.log for each in outcomes)))

    def _report(self, new: Iterable[Outcome]) -> None:
        """Report, and do not yield: an event of a run is larger by a kilobyte, and each is stored twice."""
        work, why = self._work, _why(self._work)
        for each in new:
            work.instance.report_runless_asset_event(_materialization(work, each, why, by=work.context.run_id))

    def finish(self) -> Iterator[Event]:
        """Record the step as a whole, and what the checks of the whole store say now."""
        work = self._work
        said = {**_why(work), **retried_metadata(self._retried)}
        if work.swept:
            yield self._summary(said)
        else:
            yield from _chosen(work, self._chosen, said)
        yield from (_over_time(work, each) for each in self._plotted or ())
        self._remember(self._unsaved)
        yield from self._checks()

    def fail(self, section: Section) -> None:
        """Fail the step if any log failed; for good, unless a failure is transient."""
        work = self._work
        self.failures.raise_together(len(work.logs) - len(self._gone), hint=f". See {address(work.scope, section)}")

    def _known(self) -> list[str]:
        return [log for log in self._work.scope.known_logs(self._work.instance) if log not in self._gone]

    def _summary(self, said: Mapping[str, Value]) -> AssetMaterialization:
        work, sums = self._work, self._sums
        num_logs = sum(log not in self._gone for log in work.logs)
        failed = table(("log", "why"), list(self.failures.first.items()))
        return AssetMaterialization(
            work.key,
            description=f"{num_logs} logs, {sums.num_new} of them recorded, {num_logs - sums.num_done} not done",
            metadata={
                "logs": num_logs,
                "recorded": sums.num_new,
                "not done": num_logs - sums.num_done,
                **({"gone": len(self._gone)} if self._gone else {}),
                **sums.metadata(),
                **said,
                **({"first recorded": MetadataValue.md(sums.first_table())} if sums.num_new else {}),
                **({"failed": MetadataValue.md(failed)} if self.failures.count else {}),
            },
        )

    def _checks(self) -> Iterator[Event]:
        work, found = self._work, self._found.values()
        if not work.swept:
            for each in found:
                yield Output(None, output_name=each.check.build(work.scope).get_python_identifier())
        known = self._known()
        for some in slices(known):
            records = self._records.load(some)
            for log in some:
                for each in found:
                    each.know(log, records.get(log, NOTHING))
        of_some = work.swept and len(work.logs) < len(known)
        for each in found:
            evaluated = evaluate(work.scope, each, self._retried)
            if not (of_some and evaluated.passed and _passed_lately(work, evaluated)):
                yield evaluated


def _chosen(work: Work, done: Sequence[Outcome], said: Mapping[str, Value]) -> Iterator[Event]:
    """Record each log; if one is missing, log by log, so that nothing downstream starts."""
    if len(done) < len(work.logs):
        yield from (_materialization(work, each, said) for each in done)
        return
    for each in done:
        metadata = {**each.metadata, **said}
        work.context.add_asset_metadata(metadata, partition_key=each.log)  # type: ignore[union-attr]  # not swept
    version = _data_version(done)
    yield MaterializeResult() if version is None else MaterializeResult(data_version=version)


def _is_new(outcome: Outcome, before: Mapping[str, LogRecord]) -> bool:
    known = before.get(outcome.log, NOTHING).state
    return outcome.notable or not (outcome.fingerprint == known or (outcome.state == IDLE and not known))


def _materialization(
    work: Work, outcome: Outcome, said: Mapping[str, Value], *, by: str | None = None
) -> AssetMaterialization:
    """Return a log's event; for a sweep, short enough that SQLite stores two to a page, or three."""
    metadata = outcome.metadata
    if by is not None:
        left_out = {*outcome.implied, SAID_ONCE}
        metadata = {label: value for label, value in metadata.items() if value and label not in left_out}
    return AssetMaterialization(
        work.key,
        partition=outcome.log,
        description=None if by is None else f"{RUN} {by}",
        metadata={**metadata, **said},
        tags=_version_tag(outcome),
    )


def _why(work: Work) -> dict[str, Value]:
    """Name the roll-up of dirty logs that asked for the run, if one did."""
    reason = work.context.run.tags.get(REASON_TAG, "")
    return {"why": reason} if reason.startswith(ROLLED_UP) else {}


def _version_tag(outcome: Outcome) -> dict[str, str] | None:
    return None if outcome.data_version is None else {"dagster/data_version": outcome.data_version}


def _data_version(done: Sequence[Outcome]) -> DataVersion | None:
    """Return the log's data version; a run over several logs can carry only one, made from all of theirs."""
    if not done or done[0].data_version is None:
        return None
    if len(done) == 1:
        return DataVersion(done[0].data_version)
    versions = "\n".join(f"{each.log} {each.data_version}" for each in done)
    return DataVersion(hashlib.sha256(versions.encode()).hexdigest())


def _over_time(work: Work, outcome: Outcome) -> AssetObservation:
    """Put the log's name into the labels: Dagster plots a label over time, mixing the partitions that share it."""
    numbers = {
        f"{outcome.log}: {label}": value
        for label, value in outcome.metadata.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return AssetObservation(work.key, partition=outcome.log, metadata=numbers, tags=_version_tag(outcome))


Stamp = tuple[str, str, str | None]


def _stamps(records: Iterable[tuple[str, LogRecord]]) -> set[Stamp]:
    """Return of each problem its log, its check, and the step that found it."""
    return {(log, check, known.found_by) for log, record in records for check, known in record.problems.items()}


def _judged(
    verdicts: Iterable[Verdict], before: Mapping[str, LogRecord], with_outcome: set[str], *, known: set[Stamp], by: str
) -> dict[str, LogRecord]:
    """Return the new record of each log whose problems are other ones now: a good verdict ends only ``known`` ones."""
    after: dict[str, LogRecord] = {}
    for each in verdicts:
        old = after.get(each.log) or before.get(each.log, NOTHING)
        problems, name = dict(old.problems), each.check.name
        if each.problem is not None:
            problems[name] = KnownProblem(
                problem=each.problem, blocking=each.blocking, file=each.file, log_id=each.log_id, found_by=by
            )
        elif name in problems and (each.log, name, problems[name].found_by) in known:
            del problems[name]
        # Refused by a check: what is found once it no longer is, is new.
        state = old.state if each.log in with_outcome else ""
        after[each.log] = replace(old, problems=problems, state=state)
    return {log: record for log, record in after.items() if record != before.get(log, NOTHING)}


def _states(outcomes: Sequence[Outcome], before: Mapping[str, LogRecord]) -> dict[str, LogRecord]:
    """Return the new record of each log whose state is another one now."""
    found = {each.log: each for each in outcomes}
    after = {
        log: replace(old, **_state(each, old)) for log, each in found.items() for old in [before.get(log, NOTHING)]
    }
    return {log: record for log, record in after.items() if record != before.get(log, NOTHING)}


def _state(outcome: Outcome, old: LogRecord) -> dict[str, Any]:
    if outcome.refusal is not None and outcome.state is None:
        return {}
    if outcome.state == IDLE and not old.state:
        return {}
    number = old.number + (outcome.fingerprint != old.state)
    due: dict[str, Any] = {"due_s": 0.0, "due_from": ""}
    if outcome.due_from is not None:
        waits = bool(old.due_s) and old.due_from == outcome.due_from
        due_s = old.due_s if waits else shared_runtime().now_us() / US_PER_S
        due = {"due_s": due_s, "due_from": outcome.due_from}
    return {"state": outcome.fingerprint, "number": number, **due}


def _passed_lately(work: Work, found: AssetCheckEvaluation) -> bool:
    """Return whether a check's newest evaluation says the same, so that another one is not news yet."""
    last = work.instance.get_latest_asset_check_evaluation_record(found.asset_check_key)
    said = None if last is None or last.event is None else last.event.asset_check_evaluation
    if last is None or last.event is None or said is None or not said.passed:
        return False
    return 0 <= shared_runtime().now_us() / US_PER_S - last.event.timestamp < PASSED_S
