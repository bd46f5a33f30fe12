"""A check over all known logs: red while any of them is bad, and its failure names the logs.

Dagster shows one result of a check. With a result for each log, a sound log's would hide a damaged one's, and
with thousands of logs the pages that show them no longer open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetObservation,
    DagsterEventType,
    DagsterInstance,
    JsonMetadataValue,
    MetadataValue,
    TableMetadataValue,
    TableRecord,
    TimestampMetadataValue,
)

from wal3_core.compaction.reports import Retried
from wal3_orchestration.framework.log_records import KnownProblem, LogRecord
from wal3_orchestration.framework.readable import is_number, shortened, text_of
from wal3_orchestration.framework.runbook import Section, command, find_remedy, link, remedy
from wal3_orchestration.framework.scope import StoreScope

Value = bool | int | float | str | JsonMetadataValue | TimestampMetadataValue
# Takes what a step found of a log, and the limits; returns what is wrong with it, or None.
Judge = Callable[[Any, Any], str | None]

# The logs that a check found bad in its own run, as its metadata names them.
FOUND = "found"
# The columns of a remedy.
STEPS = ("step", "do")
_ROWS_MAX = 50
_FOUND_MAX = 20
_SPOKEN_MAX = 3
_CELL_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """A check of an asset over all known logs; its failure names the bad ones, a section and a command.

    In ``next_command``, LOG stands for the log's name. ``judge`` returns what is wrong with a log, or None: its name is
    the check's, its docstring the description. A log for which ``applies`` is false is not judged. A failure of a
    ``blocking`` check stops later steps.
    """

    asset: str
    section: Section
    next_command: tuple[str, ...]
    judge: Judge
    blocking: bool = False
    applies: Callable[[Any], bool] = lambda _found: True
    details: Callable[[Any], Mapping[str, Value]] = lambda _found: {}

    @property
    def name(self) -> str:
        """The check's name."""
        return self.judge.__name__

    def build(self, scope: StoreScope) -> AssetCheckSpec:
        """Return the check of one store."""
        return AssetCheckSpec(
            self.name,
            asset=scope.key(self.asset),
            blocking=self.blocking,
            description=" ".join((self.judge.__doc__ or "").split()),
            metadata={"runbook": link(scope, self.section)},
        )

    def result(self, log: str, found: object, limits: object = None) -> CheckResult:
        """Judge what was found of a log."""
        problem = self.judge(found, limits)
        blocking = self.blocking and problem is not None
        return CheckResult(check=self, log=log, problem=problem, blocking=blocking, details=self.details(found))

    def section_of(self, problem: str) -> Section:
        """Return the section of the runbook on a problem: that of its remedy, if it has one."""
        found = find_remedy(self.name, problem)
        return self.section if found is None else found.section


_CHECKS: dict[str, list[LogCheck]] = {}


def log_check(**about: Any) -> Callable[[Judge], LogCheck]:  # noqa: ANN401 - the fields of LogCheck
    """Make a function that judges a log a check of an asset, described by the other fields of LogCheck."""

    def build(judge: Judge) -> LogCheck:
        check = LogCheck(judge=judge, **about)
        _CHECKS.setdefault(check.asset, []).append(check)
        return check

    return build


def checks_of(asset: str) -> list[LogCheck]:
    """Return the checks of an asset."""
    return _CHECKS.get(asset, [])


def judged(asset: str, log: str, found: object, limits: object) -> Iterator[CheckResult]:
    """Judge what was found of a log by each check of the asset that applies."""
    yield from (each.result(log, found, limits) for each in checks_of(asset) if each.applies(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A check's result for a log; ``problem`` is None when it passed. Only a ``blocking`` failure stops later steps.

    ``log_id`` is the life of the log that was judged, if the result is void for another one.
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


@dataclass(slots=True, kw_only=True)
class CheckFindings:
    """What is known of one check: what this run found, and which of all known logs are bad. Only the first are kept."""

    check: LogCheck
    num_judged: int = 0
    # Those of this run that failed, with the details of the first; ``only`` is the first result of all.
    here: dict[str, CheckResult] = field(default_factory=dict)
    only: CheckResult | None = None
    num_known: int = 0
    num_bad: int = 0
    bad: dict[str, KnownProblem] = field(default_factory=dict)
    severe: bool = False
    # Those in ``here`` that are known, too.
    num_both: int = 0

    def judge(self, result: CheckResult) -> None:
        """Count what this run found of a log."""
        self.num_judged += 1
        self.only = result if self.num_judged == 1 else None
        if result.problem is None:
            return
        self.severe |= result.blocking
        if len(self.here) < _ROWS_MAX:
            self.here[result.log] = replace(result, details={}) if self.here else result

    def know(self, log: str, record: LogRecord) -> None:
        """Count a known log, which may be bad since an earlier run."""
        self.num_known += 1
        known = record.problems.get(self.check.name)
        if known is None:
            return
        self.num_bad += 1
        self.num_both += log in self.here
        self.severe |= known.blocking
        if len(self.bad) < _ROWS_MAX:
            self.bad[log] = known


def evaluate(scope: StoreScope, found: CheckFindings, retried: Retried | None = None) -> AssetCheckEvaluation:
    """Judge the whole store; ``retried`` is what Spark ran again for this run, if it was used."""
    check, failed = found.check, bool(found.bad or found.here)
    # The details of the first log that failed here, or of the only one.
    shown = next(iter(found.here.values()), found.only)
    here = [{"log": each.log, "problem": each.problem} for each in list(found.here.values())[:_FOUND_MAX]]
    return AssetCheckEvaluation(
        asset_key=scope.key(check.asset),
        check_name=check.name,
        passed=not failed,
        severity=AssetCheckSeverity.ERROR if found.severe else AssetCheckSeverity.WARN,
        description=_sentence(scope, found) if failed else None,
        metadata={
            # Only the number that is worth a plot is one.
            "bad": found.num_bad,
            "judged": f"{found.num_judged:,} of {found.num_known:,} logs",
            **({"bad logs": _bad_logs(scope, found)} if found.bad else {}),
            **({FOUND: MetadataValue.json(here)} if here else {}),
            **({} if shown is None else _unplotted(shown.details)),
            **_unplotted(retried_metadata(retried)),
            **_advice(scope, found),
        },
    )


def _unplotted(values: Mapping[str, Value]) -> dict[str, Value]:
    """Write numbers as text: a plot would mix the logs that each run speaks of."""
    return {label: text_of(label, value) if is_number(value) else value for label, value in values.items()}


def _sentence(scope: StoreScope, found: CheckFindings) -> str:
    """Speak of this run's logs first: an alert is about them. Those of them that are no longer known count, too.

    The end is what to do next, about the first of them.
    """
    said = {log: result.problem or "" for log, result in found.here.items()}
    said |= {log: known.problem for log, known in found.bad.items() if log not in said}
    first = [f"{log}: {shortened(problem)}" for log, problem in list(said.items())[:_SPOKEN_MAX]]
    num_failed = found.num_bad + len(found.here) - found.num_both
    more = f"; and {num_failed - _SPOKEN_MAX} more" if num_failed > _SPOKEN_MAX else ""
    return f"{'; '.join(first)}{more}. Next: {command(scope, found.check.next_command, next(iter(said)))}"


def _bad_logs(scope: StoreScope, found: CheckFindings) -> TableMetadataValue:
    rows = [
        (log, shortened(known.problem), command(scope, found.check.next_command, log))
        for log, known in found.bad.items()
    ]
    rows += [(f"and {found.num_bad - _ROWS_MAX} more", "", "")] if found.num_bad > _ROWS_MAX else []
    return rows_of(("log", "problem", "next command"), rows)


def _advice(scope: StoreScope, found: CheckFindings) -> dict[str, Any]:
    """Say what to do about the first log."""
    bad: Mapping[str, CheckResult | KnownProblem] = found.here or found.bad
    for log, known in bad.items():
        return {"log": log, **_advice_about(scope, found.check, log, known)}
    return {}


def _advice_about(
    scope: StoreScope, check: LogCheck, log: str, known: CheckResult | KnownProblem
) -> dict[str, MetadataValue | str]:
    """Return a log's problem, the runbook's first steps against it, its section, and a first command."""
    problem = known.problem or ""
    # A long path makes the page wider than the window; ``file`` has it, after a click.
    named = None if known.file is None else shortened(known.file)
    numbered = (remedy(scope, check.name, log, problem, named) or "").partition("\n\n")[0].splitlines()
    steps = [(number, step) for number, _, step in (line.partition(". ") for line in numbered)]
    return {
        "problem": shortened(problem),
        "next_command": command(scope, check.next_command, log),
        # Not as Markdown, which Dagster shows only after a click.
        **({"remedy": rows_of(STEPS, steps)} if steps else {}),
        "runbook": link(scope, check.section_of(problem)),
        "folder": f"{scope.store_url.partition('?')[0].rstrip('/')}/{log}/",
        **({} if known.file is None else {"file": MetadataValue.md(known.file)}),
    }


def observe_bad(scope: StoreScope, result: CheckResult) -> AssetObservation:
    """Return what the page of a log's partition shows, in place of numbers from before the log was found bad."""
    check, log = result.check, result.log
    # The check has the damaged objects.
    advice = _advice_about(scope, check, log, replace(result, details={}))
    return AssetObservation(
        scope.key(check.asset),
        partition=log,
        description=f"{check.name}: {advice['problem']}. Next: {advice['next_command']}",
        metadata=advice,
    )


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


def found_by_run(instance: DagsterInstance, run_id: str) -> Iterator[AssetCheckEvaluation]:
    """Find the checks by which a run itself found logs bad."""
    for entry in instance.all_logs(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION):
        found = None if entry.dagster_event is None else entry.dagster_event.asset_check_evaluation_data
        if found is not None and FOUND in found.metadata:
            yield found


def rows_of(heads: Sequence[str], rows: Iterable[Sequence[str | float]]) -> TableMetadataValue:
    """Return a table that Dagster shows at once, and not after a click."""
    records = [TableRecord(dict(zip(heads, row, strict=True))) for row in rows]
    return MetadataValue.table(records)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a long cell is cut."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain if len(plain) <= _CELL_CHARS_MAX else f"{plain[:_CELL_CHARS_MAX]}…"
