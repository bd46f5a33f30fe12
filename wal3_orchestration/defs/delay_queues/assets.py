"""Delay queues: what each holds, as numbers that plot over time, and whether its items are handed out in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import Definitions

from wal3_orchestration.building import LogAsset
from wal3_orchestration.defs.delay_queues.looks import CHECKS, QUEUE, look_at, verdicts
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.outcomes import IDLE, Outcome
from wal3_orchestration.recording import Recorder
from wal3_orchestration.runbook import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_orchestration.defs.delay_queues.looks import QueueLook
    from wal3_orchestration.recording import Event
    from wal3_orchestration.resources import CollectionResource
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work


def look_at_queues(work: Work) -> Iterator[Event]:
    """Record and judge each queue of the step; other logs are left alone."""
    recorder, limits = Recorder(work), work.limits
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            looks = look_at(opened, some.logs)
            outcomes = [_outcome(each, limits) for each in looks]
            recorder.add(outcomes, [verdict for each in looks for verdict in verdicts(each, limits)])
        yield from recorder.finish()
        recorder.fail(Section.QUEUE_OLD)


def _outcome(found: QueueLook, limits: CollectionResource) -> Outcome:
    if found.refusal is not None:
        # Its state counts as recorded, so that the sensor asks for one run, not for one at each look.
        return Outcome(log=found.log, refusal=found.refusal, state=found.state(limits))
    if found.stats is None:
        return Outcome(log=found.log, state=IDLE, metadata=found.metadata())
    return Outcome(
        log=found.log,
        metadata=found.metadata(),
        state=found.state(limits),
        notable=True,
        data_version=found.data_version,
    )


DELAY_QUEUE = LogAsset(
    name=QUEUE,
    step=look_at_queues,
    description=(
        "What a delay queue holds, read from its log without taking it from its broker: items that wait, are due,"
        " leased, or dead, their bytes, and for how long the oldest due item has been due. Of a log that is no queue,"
        " only that.\n\nThe sensor `delay_queues` observes each queue; plots by event follow it over time."
    ),
    deps=("manifest",),
    uses=("store", "collection"),
    pool="wal3_delay_queue",
    section=Section.QUEUE_OLD,
    checks=CHECKS,
)
JOB = LogJob(name="delay_queue", assets=(DELAY_QUEUE,), description="Looks at delay queues, and judges them.")


def workflow(scope: Scope) -> Definitions:
    """Return the asset with its checks, and its job."""
    return Definitions.merge(Definitions(assets=[DELAY_QUEUE.build(scope)]), build_jobs(scope, [JOB]))
