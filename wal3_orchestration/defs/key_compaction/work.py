"""One log's part of each step of a key compaction: what was found or done, as an outcome. Errors hide no other log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wal3_core import LogReader
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.reports import KeyCompactorOptions
from wal3_core.errors import KeyCompactionRefusedError, LogError, LogReplacedError, MissingError
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.model.paths import pass_path
from wal3_orchestration.at_once import at_once
from wal3_orchestration.outcomes import IDLE, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.compaction.engine import Engine
    from wal3_core.compaction.reports import KeyCompactionPlan, KeyCompactionReport
    from wal3_core.compaction.verifying import Verification
    from wal3_core.model.pass_record import PassRecord
    from wal3_core.model.retried import Retried
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.outcomes import Value
    from wal3_orchestration.resources import CollectionResource

# The label of the token of a merged pass.
IDENTITY = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A log's plan without its keys; without one, ``refusal`` says why. ``compacted`` is whether its policy asks so."""

    log: str
    plan: KeyCompactionPlan | None = None
    refusal: Refusal | None = None
    compacted: bool = True


def outlines(store: ObjectStore, logs: Iterable[str]) -> list[Outline]:
    """Outline passes over many logs, several at a time, in order. UnavailableError when the store does not answer."""
    return list(at_once(partial(_outline, store), logs))


def _outline(store: ObjectStore, log: str) -> Outline:
    found = try_log(lambda name: KeyCompactor(store, name).outline(), log)
    if isinstance(found, LogReplacedError):
        # The name has another life since the first request: that one is outlined.
        return _outline(store, log)
    if not isinstance(found, LogError):
        return Outline(log=log, plan=found)
    refusal = Refusal.of(found)
    return Outline(log=log, refusal=refusal, compacted=refusal.kind != KeyCompactionRefusedError.__name__)


def plan_numbers(plan: KeyCompactionPlan) -> dict[str, Value]:
    """Return the numbers of a plan that Dagster plots."""
    return {
        "dirty (%)": plan.dirty_percent,
        "dirty records (%)": plan.dirty_records_percent,
        "dirty_bytes": plan.dirty_bytes,
        "held_bytes": plan.held_bytes,
        "overdue (s)": plan.overdue_s,
        "held back (s)": plan.held_back_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What became of a log's merge: its outcome, what is wrong with its proof, what Spark ran again if it was used."""

    outcome: Outcome
    problem: str | None = None
    retried: Retried | None = None


def merge_log(store: ObjectStore, log: str, limits: CollectionResource, engine: Engine | None, way: str) -> Merged:
    """Plan and merge a pass over a log if one is due, and check what its record says."""
    compactor = KeyCompactor(store, log, options=options_of(limits), engine=engine)
    try:
        done = compactor.merge()
        record = None if done.token is None else compactor.record(done.token)
    except LogReplacedError:
        return merge_log(store, log, limits, engine, way)
    except LogError as error:
        refusal = Refusal.of(error)
        if refusal.kind == KeyCompactionRefusedError.__name__:
            return Merged(outcome=Outcome(log=log, state=IDLE, metadata={"reason": refusal.message}))
        # A fragment that is not what it was leaves nothing to prove.
        problem = None if refusal.transient else f"{refusal.kind}: {refusal.message}"
        return Merged(outcome=Outcome(log=log, refusal=refusal), problem=problem)
    except AssertionError as error:
        refusal = Refusal(kind=AssertionError.__name__, message=str(error))
        return Merged(outcome=Outcome(log=log, refusal=refusal), problem=f"the library stopped the pass: {error}")
    outcome = Outcome(
        log=log,
        # Each merge is recorded, and nothing else is.
        state=IDLE,
        notable=record is not None,
        metadata={**_merged_numbers(done), "cause": done.plan.due or "", IDENTITY: done.token or "", "done_by": way},
    )
    return Merged(outcome=outcome, problem=None if record is None else record.problem(), retried=done.retried)


def _merged_numbers(done: KeyCompactionReport) -> dict[str, Value]:
    plan = done.plan
    moved = done.bytes_read + done.bytes_written
    return {
        **plan_numbers(plan),
        "bytes_read": done.bytes_read,
        "bytes_written": done.bytes_written,
        "amplification": moved / plan.dirty_bytes if plan.dirty_bytes else 0.0,
        "superseded": done.num_superseded,
        "expired": done.num_expired,
        "records_written": done.num_merged,
        "fragments_read": plan.num_rewritten,
        "fragments_written": done.num_written,
        "key_columns_read": plan.num_read,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What became of a log's install: its outcome, and what the verification found that followed it, if one did."""

    outcome: Outcome
    verified: Verification | None = None
    problem: str | None = None


def install_log(
    store: ObjectStore, log: str, token: str, limits: CollectionResource, *, always: bool = False
) -> Installed:
    """Install a merged pass, once, and verify a log that is small enough; with ``always``, also without a pass.

    A pass that an earlier try has installed is verified as well: that try may have ended before. One that was overtaken
    is no failure: the log stays as dirty as it was, and is chosen again.
    """
    compactor = KeyCompactor(store, log, options=options_of(limits))
    try:
        done = compactor.install(token) if token else None
        there = done is not None and done.overtaken is None
        small = (there or always) and LogReader.open(
            store, log
        ).manifest().num_bytes <= limits.compaction_verified_bytes_max
        verified = compactor.verify() if small else None
    except LogReplacedError as error:
        return Installed(outcome=_overtaken(log, token, str(error)))
    except LogError as error:
        if isinstance(error, MissingError) and error.path == pass_path(token):
            return Installed(outcome=_overtaken(log, token, "what it left was deleted as orphans"))
        refusal = Refusal.of(error)
        return Installed(outcome=Outcome(log=log, refusal=refusal))
    fresh = there and done is not None and not done.repeated
    metadata: dict[str, Value] = {"installed": fresh, IDENTITY: token, "verified": verified is not None}
    if done is not None:
        metadata |= {
            **_record_numbers(done.record),
            "installed_before": done.repeated,
            "overtaken": done.overtaken or "",
            "garbage_documents": len(done.garbage),
        }
    return Installed(
        outcome=Outcome(
            log=log,
            notable=there,
            state=f"overtaken {token}" if done is not None and done.overtaken else IDLE,
            metadata=metadata,
        ),
        verified=verified,
        problem=None if verified is None or verified.holds else _said(verified),
    )


def _overtaken(log: str, token: str, cause: str) -> Outcome:
    """Return the outcome of a pass that was not installed in time, and is gone by now."""
    metadata: dict[str, Value] = {"installed": False, IDENTITY: token, "verified": False, "overtaken": cause}
    return Outcome(log=log, state=f"overtaken {token}", metadata=metadata)


def _said(found: Verification) -> str:
    more = f"; and {len(found.findings) - 1} more" if len(found.findings) > 1 else ""
    return f"pass {found.token} does not hold: {found.findings[0]}{more}"


def _record_numbers(record: PassRecord) -> dict[str, Value]:
    return {
        "pass": record.number,
        "clean_limit": record.limit,
        "superseded": record.num_superseded,
        "expired": record.num_expired,
        "bytes_read": record.bytes_read,
        "bytes_written": record.bytes_written,
        "setsum_before": record.proof.before.hexdigest(),
        "setsum_after": record.proof.after.hexdigest(),
        "setsum_superseded": record.proof.superseded.hexdigest(),
        "setsum_expired": record.proof.expired.hexdigest(),
    }


def options_of(limits: CollectionResource) -> KeyCompactorOptions:
    """Return the library's options."""
    return KeyCompactorOptions(bytes_per_s_max=limits.compaction_bytes_per_s_max or None)
