"""What the verification of each log's last pass has found: it stands until a later one, or until the log is another.

Until then no other pass is made: it would be verified alone, and what the one before it has replaced be deleted.

The name of a log that was destroyed may lead to another one. That its predecessor's pass did not hold keeps nothing
of the new log from being deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster import MetadataValue

from wal3_orchestration.building import LogCheck
from wal3_orchestration.defs.key_compaction.work import IDENTITY
from wal3_orchestration.log_records import NOTHING, KnownProblem, LogRecords
from wal3_orchestration.log_state import read_manifests
from wal3_orchestration.outcomes import Verdict, latest, value_of
from wal3_orchestration.runbook import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_orchestration.defs.key_compaction.work import Installed
    from wal3_orchestration.work import Work

INSTALLED = "installed_manifest"

VERIFIED = LogCheck(
    name="compaction_verified",
    asset=INSTALLED,
    blocking=True,
    description=(
        "The last pass of each log holds, derived again from storage alone. While it does not, garbage of the log is"
        " not deleted: what the pass replaced is among it."
    ),
    section=Section.COMPACTION,
    next_command=("compact", "LOG", "--verify"),
)


def judge_installed(work: Work, done: Sequence[Installed]) -> Iterator[Verdict]:
    """Judge the logs that were verified; of the others, a run that names them repeats what is known.

    What was found in a log that had the name before is dropped.
    """
    before, known = _problems(work), unverified(work)
    judged = {each.outcome.log: each for each in done if each.verified is not None}
    for log, each in judged.items():
        assert each.verified is not None
        yield Verdict(
            check=VERIFIED,
            log=log,
            problem=each.problem,
            blocking=each.problem is not None,
            log_id=each.verified.log_id,
            details={"verification": MetadataValue.json(each.verified.to_json())},
        )
    named = set() if work.swept else {each.outcome.log for each in done}
    for log in work.logs:
        if log not in judged and (log in named or log in before.keys() - known.keys()):
            problem = known.get(log)
            yield Verdict(
                check=VERIFIED,
                log=log,
                problem=None if problem is None else problem.problem,
                blocking=problem is not None,
                log_id=None if problem is None else problem.log_id,
            )


def holds(work: Work, log: str, token: str) -> bool:
    """Return whether a pass was installed, verified and found to hold, as what was recorded last of the log says."""
    recorded = latest(work.instance, work.scope.key(INSTALLED), log, count=1)
    verified = any(value_of(each, IDENTITY) == token and value_of(each, "verified") for each in recorded)
    return verified and log not in _problems(replace(work, logs=[log]))


def unverified(work: Work) -> dict[str, KnownProblem]:
    """Return the logs whose last pass does not hold, each with what is wrong: what it replaced must not be deleted.

    Without those of which the name has another log by now. One that cannot be read counts as the same.
    """
    known = _problems(work)
    now = {log: manifest.log_id for log, manifest in read_manifests(work.open(), known)} if known else {}
    return {log: each for log, each in known.items() if each.log_id in {None, now.get(log, each.log_id)}}


def unproven(work: Work) -> dict[str, KnownProblem]:
    """Return the logs whose last pass a run has installed, and not verified yet: it is about to, or it has died."""
    records = LogRecords(work.scope, work.instance, INSTALLED).load(work.logs)
    begun = {log: record.unproven for log, record in records.items() if record.unproven}
    # If the log has another pass by now, or the name another log, this one was never installed, or is not the last.
    now = {log: found.compaction.token for log, found in read_manifests(work.open(), begun)} if begun else {}
    return {
        log: KnownProblem(
            problem=f"expected pass {token} to be verified, found it installed only; if its run has ended, launch"
            f" {work.scope.named('compaction_job')} for the log"
        )
        for log, token in begun.items()
        if now.get(log, token) == token
    }


def note(work: Work, log: str, token: str) -> None:
    """Remember the pass that is about to be installed, or with an empty token that it has been verified, if it can be.

    So a run that dies in between leaves a pass that is known to be unproven.
    """
    records = LogRecords(work.scope, work.instance, INSTALLED)
    known = records.load([log]).get(log, NOTHING)
    records.save({log: replace(known, unproven=token)})


def _problems(work: Work) -> dict[str, KnownProblem]:
    known = LogRecords(work.scope, work.instance, INSTALLED).load(work.logs)
    return {log: each.problems[VERIFIED.name] for log, each in known.items() if VERIFIED.name in each.problems}
