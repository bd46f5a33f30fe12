"""A check of the whole store: red while any known log is bad, and its failure names the logs.

Dagster shows one result of a check. With a result for each log, a sound log's would hide a damaged one's, and
with thousands of logs the pages that show them no longer open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import AssetCheckEvaluation, AssetCheckSeverity, MetadataValue

from wal3_orchestration.outcomes import retried_metadata
from wal3_orchestration.remedies import next_command, remedy, section_of
from wal3_orchestration.runbook import link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def evaluate(
    scope: Scope,
    check: LogCheck,
    verdicts: Sequence[Verdict],
    records: Mapping[str, LogRecord],
    retried: Retried | None = None,
) -> AssetCheckEvaluation:
    """Judge the whole store by the ``records`` of all known logs; ``verdicts`` are those of this run.

    ``retried`` is what Spark ran again to get them, if it was used.
    """
    bad = {log: found.problems[check.name] for log, found in records.items() if check.name in found.problems}
    # Also of a log that is no longer known: the run was about it.
    here = {verdict.log: verdict for verdict in verdicts if verdict.problem is not None}
    failed = bool(bad or here)
    severe = any(known.blocking for known in bad.values()) or any(each.blocking for each in here.values())
    return AssetCheckEvaluation(
        asset_key=scope.key(check.asset),
        check_name=check.name,
        passed=not failed,
        severity=AssetCheckSeverity.ERROR if severe else AssetCheckSeverity.WARN,
        description=_sentence(bad, here) if failed else None,
        metadata={
            "logs": len(records),
            "judged": len({verdict.log for verdict in verdicts}),
            "bad": len(bad),
            **({"bad logs": MetadataValue.md(_bad_logs(scope, check, bad))} if bad else {}),
            **({FOUND: MetadataValue.json(_found(here.values()))} if here else {}),
            **_details(verdicts, here),
            **retried_metadata(retried),
            **_advice(scope, check, bad, here),
        },
    )


def _sentence(bad: Mapping[str, KnownProblem], here: Mapping[str, Verdict]) -> str:
    """Speak of this run's logs first: an alert is about them."""
    said = {log: verdict.problem for log, verdict in here.items()}
    said |= {log: known.problem for log, known in bad.items() if log not in said}
    first = [f"{log}: {problem}" for log, problem in list(said.items())[:_SPOKEN_MAX]]
    more = f"; and {len(said) - _SPOKEN_MAX} more" if len(said) > _SPOKEN_MAX else ""
    return f"{'; '.join(first)}{more}"


def _bad_logs(scope: Scope, check: LogCheck, bad: Mapping[str, KnownProblem]) -> str:
    rows = [
        (log, known.problem, f"`{next_command(scope, check, log)}`") for log, known in list(bad.items())[:_ROWS_MAX]
    ]
    more = f"\n\nand {len(bad) - _ROWS_MAX} more" if len(bad) > _ROWS_MAX else ""
    return f"{table(('log', 'problem', 'next command'), rows)}{more}"


def _found(here: Iterable[Verdict]) -> list[dict[str, str | None]]:
    return [{"log": each.log, "problem": each.problem} for each in list(here)[:_FOUND_MAX]]


def _details(verdicts: Sequence[Verdict], here: Mapping[str, Verdict]) -> dict[str, Any]:
    """Show the details of the first log that failed here, or of the only one."""
    for verdict in here.values():
        return dict(verdict.details)
    return dict(verdicts[0].details) if len(verdicts) == 1 else {}


def _advice(
    scope: Scope, check: LogCheck, bad: Mapping[str, KnownProblem], here: Mapping[str, Verdict]
) -> dict[str, Any]:
    """Say what to do about the first log: the runbook's first steps, its section, a first command."""
    for log, verdict in here.items():
        return advice(scope, check, log, problem=verdict.problem or "", file=verdict.file)
    for log, known in bad.items():
        return advice(scope, check, log, problem=known.problem, file=known.file)
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
