"""The end of a story of chains: with every fault healed, all is finished, given and sound."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from tests.faults.chain_moves import CHAIN
from tests.faults.chain_owners import Consuming
from tests.faults.history import Append
from tests.faults.store import SimStore
from tests.faults.actors import judged
from wal3_core import LogNotFoundError, LogReader, LogWriter, Message, scrub
from wal3_core.errors import InvalidRequestError
from wal3_core.log.maintain.sealer import initialize_successor
from wal3_core.model.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger
    from tests.faults.simulator import SimProcess


def finish(stage: Stage, operator: SimProcess, ledger: ChainLedger, owners: Sequence[Consuming]) -> None:
    """Finish what was cut short, let each owner come to the end, and check each log."""
    operator.steady = True
    _finish_migrations(stage, operator)
    _check_progress(stage, operator, ledger)
    _drain(stage, operator, ledger, owners)
    ledger.check_appends()
    ledger.check_named()
    for log in standing(stage):
        _check_sound(stage, operator, log)


def standing(stage: Stage) -> list[str]:
    """Return the names that are logs."""
    return [log for log, name in stage.world.names.of.items() if isinstance(name.entry, Manifest)]


def tip(stage: Stage, log: str) -> str:
    """Return the last log of a chain."""
    while True:
        entry = stage.world.names[log].entry
        if not isinstance(entry, Manifest) or entry.seal is None or entry.seal.successor is None:
            return log
        log = entry.seal.successor


def _finish_migrations(stage: Stage, operator: SimProcess) -> None:
    for log in CHAIN:
        with suppress(LogNotFoundError, InvalidRequestError):
            initialize_successor(SimStore(stage.world, operator), log, runtime=operator)


def _check_progress(stage: Stage, operator: SimProcess, ledger: ChainLedger) -> None:
    store, log = SimStore(stage.world, operator), tip(stage, CHAIN[0])
    append = Append((Message(b"\x00last", b"chat"),), stage.simulation.now_s)
    ledger.appends.append(append)
    with (
        LogWriter.open_or_initialize(store, log, runtime=operator) as writer,
        judged(stage, store, append, log=log),
    ):
        append.offset = writer.append(append.records[0].body, key=b"chat").offset
    assert append.outcome == "acked", f"after healing: {append}"


def _drain(stage: Stage, operator: SimProcess, ledger: ChainLedger, owners: Sequence[Consuming]) -> None:
    """Each owner is given all that is left."""
    dice = stage.simulation.dice("operator drains")
    for owner in owners:
        if owner.name not in ledger.retiring:
            with suppress(LogNotFoundError):
                owner.consume(stage, operator, 10_000, dice)
    for course in ledger.courses:
        if course.living:
            ledger.check_complete(course)
        stage.world.fired["chain: given"] += len(course.given)
        stage.world.fired["chain: given again"] += sum(count > 1 for count in course.given.values())


def _check_sound(stage: Stage, operator: SimProcess, log: str) -> None:
    store, life = SimStore(stage.world, operator), stage.world.names[log].life
    report = scrub(store, log, runtime=operator)
    assert report.sound, report.problems
    reader = LogReader.open(store, log, runtime=operator)
    found = [Message(record.body, record.key) for record in reader.records()]
    assert found == life.messages(reader.manifest()), f"{log} holds other records"
