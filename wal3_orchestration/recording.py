"""Records what a step found in Dagster: each log by its partition, and the store as a whole.

A run of an asset records each of its logs. A sweep records one materialization without a partition, which sums up
the run, and reports the logs whose state is not the one that was recorded last, each with the id of the run. So
what Dagster stores follows what was written, not how many logs there are.
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
from wal3_orchestration.gone import gone_logs
from wal3_orchestration.jobs import REASON_TAG
from wal3_orchestration.log_records import NOTHING, KnownProblem, LogRecord, LogRecords
from wal3_orchestration.outcomes import IDLE, RUN, retried_metadata
from wal3_orchestration.partitions import ROLLED_UP
from wal3_orchestration.store_checks import evaluate, table

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

    from wal3_core.model.retried import Retried
    from wal3_orchestration.outcomes import Outcome, Value, Verdict
    from wal3_orchestration.work import Work

    Event = AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation

# Stores with more logs than this have too many labels for the page that plots them.
PLOTTED_LOGS_MAX = 50
_ROWS_MAX = 50
# Each of these has an event of its own.
_RECORDED_ROWS_MAX = 10
# A sweep over some logs records that a check still passes at most so often: each evaluation is stored three times.
PASSED_S = 6 * 60 * 60
# What is the same for all logs of a step.
_SAID_ONCE = "done_by"
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
)


def record(
    work: Work, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict] = (), *, retried: Retried | None = None
) -> Generator[Event, None, tuple[list[Outcome], list[Verdict]]]:
    """Record what did not fail, and what the checks of the whole store say now; then remember both for each log.

    ``retried`` is what Spark ran again for the step, if it was used.
    Return the outcomes and verdicts without those of logs that a sweep found gone: these do not fail it.
    """
    gone = gone_logs(work, outcomes, verdicts)
    outcomes = [each for each in outcomes if each.log not in gone]
    verdicts = [each for each in verdicts if each.log not in gone]
    work = replace(work, logs=[log for log in work.logs if log not in gone])
    known = [log for log in work.scope.known_logs(work.instance) if log not in gone]
    records = LogRecords(work.scope, work.instance, work.asset)
    before = records.load(dict.fromkeys([*known, *work.logs]))
    done = [outcome for outcome in outcomes if outcome.refusal is None]
    said = {**_why(work), **retried_metadata(retried)}
    yield from _swept(work, outcomes, before, gone, said) if work.swept else _chosen(work, done, said)
    if len(known) <= PLOTTED_LOGS_MAX:
        yield from (_over_time(work, each) for each in done if not work.swept or _is_new(each, before))
    after = _after(work.logs, outcomes, verdicts, before)
    records.save(after)
    yield from _checks(work, verdicts, {log: (before | after).get(log, NOTHING) for log in known}, retried)
    return outcomes, verdicts


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


def _swept(
    work: Work,
    outcomes: Sequence[Outcome],
    before: Mapping[str, LogRecord],
    gone: Collection[str],
    said: Mapping[str, Value],
) -> Iterator[Event]:
    done = [each for each in outcomes if each.refusal is None]
    new = [each for each in done if _is_new(each, before)]
    for each in new:
        # Reported, and not yielded: an event of a run is larger by a kilobyte, and each is stored twice.
        work.instance.report_runless_asset_event(_materialization(work, each, _why(work), by=work.context.run_id))
    totals: dict[str, Any] = {
        f"total {label}": sum(_number(each.metadata[label]) for each in done if label in each.metadata)
        for label in _ADDED
        if any(label in each.metadata for each in done)
    }
    ways = sorted({str(each.metadata[_SAID_ONCE]) for each in done if _SAID_ONCE in each.metadata})
    failed = {each.log: each.refusal.message for each in outcomes if each.refusal is not None}
    rows = [(each.log, *map(str, _cells(each, new))) for each in new[:_RECORDED_ROWS_MAX]]
    yield AssetMaterialization(
        work.key,
        description=f"{len(work.logs)} logs, {len(new)} of them recorded, {len(work.logs) - len(done)} not done",
        metadata={
            "logs": len(work.logs),
            "recorded": len(new),
            "not done": len(work.logs) - len(done),
            **({"gone": len(gone)} if gone else {}),
            **totals,
            **({_SAID_ONCE: ", ".join(ways)} if ways else {}),
            **said,
            **({"first recorded": MetadataValue.md(table(("log", *_columns(new)), rows))} if new else {}),
            **({"failed": MetadataValue.md(table(("log", "why"), list(failed.items())[:_ROWS_MAX]))} if failed else {}),
        },
    )


def _columns(new: Sequence[Outcome]) -> list[str]:
    return [label for label in _ADDED if any(label in each.metadata for each in new)]


def _cells(outcome: Outcome, new: Sequence[Outcome]) -> list[object]:
    return [outcome.metadata.get(label, "") for label in _columns(new)]


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _is_new(outcome: Outcome, before: Mapping[str, LogRecord]) -> bool:
    known = before.get(outcome.log, NOTHING).state
    return outcome.notable or not (outcome.fingerprint == known or (outcome.state == IDLE and not known))


def _materialization(
    work: Work, outcome: Outcome, said: Mapping[str, Value], *, by: str | None = None
) -> AssetMaterialization:
    """Return a log's event; for a sweep, short enough that SQLite stores two to a page, or three."""
    metadata = outcome.metadata
    if by is not None:
        left_out = {*outcome.implied, _SAID_ONCE}
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


def _after(
    logs: Sequence[str], outcomes: Sequence[Outcome], verdicts: Sequence[Verdict], before: Mapping[str, LogRecord]
) -> dict[str, LogRecord]:
    """Return the new record of each log that was judged or has an outcome."""
    found = {each.log: each for each in outcomes}
    judged: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        judged.setdefault(verdict.log, []).append(verdict)
    after = {}
    for log in logs:
        old = before.get(log, NOTHING)
        new = replace(old, **_state(found.get(log), judged.get(log), old))
        if log in judged:
            new = replace(new, problems={**_kept(old, judged[log]), **_problems(judged[log])})
        if new != old:
            after[log] = new
    return after


def _state(outcome: Outcome | None, judged: Sequence[Verdict] | None, old: LogRecord) -> dict[str, Any]:
    if outcome is None:
        # Refused by a check: what is found once it no longer is, is new.
        return {"state": ""} if judged else {}
    if outcome.refusal is not None and outcome.state is None:
        return {}
    if outcome.state == IDLE and not old.state:
        return {}
    number = old.number + (outcome.fingerprint != old.state)
    due: dict[str, Any] = {"due_s": 0.0, "due_from": 0}
    if outcome.due_from is not None:
        waits = bool(old.due_s) and old.due_from == outcome.due_from
        due_s = old.due_s if waits else shared_runtime().now_us() / US_PER_S
        due = {"due_s": due_s, "due_from": outcome.due_from}
    return {"state": outcome.fingerprint, "number": number, **due}


def _kept(old: LogRecord, judged: Sequence[Verdict]) -> dict[str, KnownProblem]:
    names = {verdict.check.name for verdict in judged}
    return {name: problem for name, problem in old.problems.items() if name not in names}


def _problems(judged: Sequence[Verdict]) -> dict[str, KnownProblem]:
    return {
        each.check.name: KnownProblem(problem=each.problem, blocking=each.blocking, file=each.file, log_id=each.log_id)
        for each in judged
        if each.problem is not None
    }


def _checks(
    work: Work, verdicts: Sequence[Verdict], records: Mapping[str, LogRecord], retried: Retried | None
) -> Iterator[Event]:
    checks = {verdict.check.name: verdict.check for verdict in verdicts}.values()
    if not work.swept:
        for check in checks:
            yield Output(None, output_name=check.build(work.scope).get_python_identifier())
    some = work.swept and len(work.logs) < len(records)
    for check in checks:
        found = evaluate(work.scope, check, [each for each in verdicts if each.check is check], records, retried)
        if not (some and found.passed and _passed_lately(work, found)):
            yield found


def _passed_lately(work: Work, found: AssetCheckEvaluation) -> bool:
    """Return whether a check's newest evaluation says the same, so that another one is not news yet."""
    last = work.instance.get_latest_asset_check_evaluation_record(found.asset_check_key)
    said = None if last is None or last.event is None else last.event.asset_check_evaluation
    if last is None or last.event is None or said is None or not said.passed:
        return False
    return 0 <= shared_runtime().now_us() / US_PER_S - last.event.timestamp < PASSED_S
