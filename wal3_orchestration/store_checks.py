"""A check of the whole store: red while any known log is bad, and its failure names the logs.

Dagster shows one result of a check. With a result for each log, a sound log's would hide a damaged one's, and
with thousands of logs the pages that show them no longer open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckEvaluation, AssetCheckSeverity, MetadataValue

from wal3_orchestration.outcomes import retried_metadata
from wal3_orchestration.remedies import next_command, remedy, section_of
from wal3_orchestration.runbook import link

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wal3_core.model.retried import Retried
    from wal3_orchestration.building import LogCheck
    from wal3_orchestration.log_records import KnownProblem, LogRecord
    from wal3_orchestration.outcomes import Verdict
    from wal3_orchestration.scope import Scope

# The logs that a check found bad in its own run, as its metadata names them.
FOUND = "found"
_ROWS_MAX = 50
_FOUND_MAX = 20
_SPOKEN_MAX = 3
_CELL_CHARS_MAX = 300


@dataclass(slots=True, kw_only=True)
class CheckFindings:
    """What is known of one check: what this run found, and which of all known logs are bad. Only the first are kept."""

    check: LogCheck
    num_judged: int = 0
    # Those of this run that failed, with the details of the first; ``only`` is the first verdict of all.
    here: dict[str, Verdict] = field(default_factory=dict)
    only: Verdict | None = None
    num_known: int = 0
    num_bad: int = 0
    bad: dict[str, KnownProblem] = field(default_factory=dict)
    severe: bool = False
    # Those in ``here`` that are known, too.
    num_both: int = 0

    def judge(self, verdict: Verdict) -> None:
        """Count what this run found of a log."""
        self.num_judged += 1
        self.only = verdict if self.num_judged == 1 else None
        if verdict.problem is None:
            return
        self.severe |= verdict.blocking
        if len(self.here) < _ROWS_MAX:
            self.here[verdict.log] = replace(verdict, details={}) if self.here else verdict

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

    @property
    def num_failed(self) -> int:
        """How many logs are bad, with those of this run that are no longer known: the run was about them."""
        return self.num_bad + len(self.here) - self.num_both


def evaluate(scope: Scope, found: CheckFindings, retried: Retried | None = None) -> AssetCheckEvaluation:
    """Judge the whole store; ``retried`` is what Spark ran again for this run, if it was used."""
    check, failed = found.check, bool(found.bad or found.here)
    return AssetCheckEvaluation(
        asset_key=scope.key(check.asset),
        check_name=check.name,
        passed=not failed,
        severity=AssetCheckSeverity.ERROR if found.severe else AssetCheckSeverity.WARN,
        description=_sentence(found) if failed else None,
        metadata={
            "logs": found.num_known,
            "judged": found.num_judged,
            "bad": found.num_bad,
            **({"bad logs": MetadataValue.md(_bad_logs(scope, found))} if found.bad else {}),
            **({FOUND: MetadataValue.json(_found(found.here.values()))} if found.here else {}),
            **_details(found),
            **retried_metadata(retried),
            **_advice(scope, found),
        },
    )


def _sentence(found: CheckFindings) -> str:
    """Speak of this run's logs first: an alert is about them."""
    said = {log: verdict.problem for log, verdict in found.here.items()}
    said |= {log: known.problem for log, known in found.bad.items() if log not in said}
    first = [f"{log}: {problem}" for log, problem in list(said.items())[:_SPOKEN_MAX]]
    more = f"; and {found.num_failed - _SPOKEN_MAX} more" if found.num_failed > _SPOKEN_MAX else ""
    return f"{'; '.join(first)}{more}"


def _bad_logs(scope: Scope, found: CheckFindings) -> str:
    rows = [(log, known.problem, f"`{next_command(scope, found.check, log)}`") for log, known in found.bad.items()]
    more = f"\n\nand {found.num_bad - _ROWS_MAX} more" if found.num_bad > _ROWS_MAX else ""
    return f"{table(('log', 'problem', 'next command'), rows)}{more}"


def _found(here: Iterable[Verdict]) -> list[dict[str, str | None]]:
    return [{"log": each.log, "problem": each.problem} for each in list(here)[:_FOUND_MAX]]


def _details(found: CheckFindings) -> dict[str, Any]:
    """Show the details of the first log that failed here, or of the only one."""
    for verdict in found.here.values():
        return dict(verdict.details)
    return {} if found.only is None else dict(found.only.details)


def _advice(scope: Scope, found: CheckFindings) -> dict[str, Any]:
    """Say what to do about the first log: the runbook's first steps, its section, a first command."""
    for log, verdict in found.here.items():
        return advice(scope, found.check, log, problem=verdict.problem or "", file=verdict.file)
    for log, known in found.bad.items():
        return advice(scope, found.check, log, problem=known.problem, file=known.file)
    return {}


def advice(scope: Scope, check: LogCheck, log: str, *, problem: str, file: str | None) -> dict[str, Any]:
    """Return what to do about a failed check of a log, as metadata."""
    steps = remedy(scope, check.name, log, problem, file)
    return {
        "log": log,
        "problem": problem,
        **({} if file is None else {"file": file}),
        **({} if steps is None else {"remedy": MetadataValue.md(steps)}),
        "runbook": link(scope, section_of(check, problem)),
        "next_command": next_command(scope, check, log),
        "folder": f"{scope.store_url.partition('?')[0].rstrip('/')}/{log}/",
    }


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a long cell is cut."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|")
    return plain if len(plain) <= _CELL_CHARS_MAX else f"{plain[:_CELL_CHARS_MAX]}…"
