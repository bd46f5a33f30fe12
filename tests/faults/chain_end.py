"""The end of a story of chains: with every fault healed, all is finished, given, sound, and can be collected."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.actors import Stage, judged
from tests.faults.chain_appends import check_appends, check_named
from tests.faults.chain_moves import BACKUP, CHAIN, check_same, check_unmovable
from tests.faults.collectors import collector_options
from tests.faults.compactors import change_policy
from tests.faults.history import Append
from tests.faults.named_writers import FatefulStore, NamedHand, drawn_rows
from tests.faults.simulator import NEVER_S, SimProcess
from tests.faults.store import SimStore
from wal3_core import (
    CursorStore,
    LogAt,
    LogNotFoundError,
    LogReader,
    LogWriter,
    Message,
    WriterOptions,
    collect,
    scrub,
    update_copy,
)
from wal3_core.errors import CollectionRefusedError, GarbageCollectedError, InvalidRequestError
from wal3_core.format.manifest import Manifest
from wal3_core.format.policy import Policy
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.log.maintain.sealer import create_successor
from wal3_core.views.feed.messages import packed

if TYPE_CHECKING:
    from tests.faults.chain_ledger import ChainLedger
    from tests.faults.chain_owners import Consuming
    from tests.faults.chain_views import Owner
    from tests.faults.oracle import Oracle


def finish(
    stage: Stage,
    operator: SimProcess,
    ledger: ChainLedger,
    owners: Mapping[str, Consuming | Owner],
    options: WriterOptions,
) -> None:
    """Finish what was cut short, let each owner come to the end, and check each log."""
    operator.steady = True
    _finish_moves(stage, operator)
    _check_progress(stage, operator, ledger)
    _repeat(stage, operator, ledger, options)
    _drain(stage, operator, ledger, owners)
    check_appends(ledger)
    check_named(ledger)
    for log in standing(stage):
        _check_sound(stage, operator, ledger, log)
    _check_updated(stage, operator)
    check_unmovable(stage, operator)


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


def _finish_moves(stage: Stage, operator: SimProcess) -> None:
    """Destroy copies and logs that were left half made or half destroyed, and begin the successors of sealed ones."""
    for log, name in [*stage.world.names.of.items()]:
        if name.copying is not None or (isinstance(name.entry, Manifest) and name.entry.destroying):
            name.pins_going += 1
            destroy(SimStore(stage.world, operator), log, also_pinned=True, runtime=operator)
            stage.world.fired["chain: destroyed unfinished"] += 1
    for log in CHAIN:
        with suppress(LogNotFoundError, InvalidRequestError):
            create_successor(SimStore(stage.world, operator), log, runtime=operator)


def _check_progress(stage: Stage, operator: SimProcess, ledger: ChainLedger) -> None:
    store, log = SimStore(stage.world, operator), tip(stage, CHAIN[0])
    entry = stage.world.names[log].entry
    append = Append((Message(packed("last"), b"chat"),), stage.simulation.now_s)
    ledger.appends.append(append)
    with (
        LogWriter.open_or_create(store, log, runtime=operator) as writer,
        judged(stage, store, append, log=log),
    ):
        append.offset = writer.append(append.records[0].body, key=b"chat").offset
    sealed = isinstance(entry, Manifest) and entry.seal is not None
    assert append.outcome == ("sealed" if sealed else "acked"), f"after healing: {append}"


def _repeat(stage: Stage, operator: SimProcess, ledger: ChainLedger, options: WriterOptions) -> None:
    """Each named append can be repeated at the end of the chain, and is made or found."""
    hand = NamedHand(stage, FatefulStore(stage.world, operator), ledger.named, options, tip(stage, CHAIN[0]))
    entry, dice = stage.world.names[hand.log].entry, stage.simulation.dice("operator repeats")
    if not isinstance(entry, Manifest) or entry.seal is not None:
        return
    single = {attempt.once for attempt in ledger.named.attempts if not attempt.once.series}
    for once in (*sorted(single, key=lambda once: once.append), *ledger.named.begun.values()):
        rows = drawn_rows(once, stage.simulation.dice(f"rows of {once.cursor}/{once.append}"))
        parts = hand.stage_rows(rows, dice)
        assert parts, f"after healing, {once} cannot be staged"
        assert hand.install(once, rows, parts), f"after healing, {once} is refused: {ledger.named.attempts[-1]}"


def _drain(stage: Stage, operator: SimProcess, ledger: ChainLedger, owners: Mapping[str, Consuming | Owner]) -> None:
    """Each owner is given all that is left."""
    for course in [*ledger.courses]:
        lives = [life for life in ledger.successors(course.life) if life.over_s == NEVER_S]
        if course.living and lives:
            owners[course.name].drain(stage, operator, lives)
            if course.living:
                ledger.check_complete(course)
        stage.world.fired["chain: given"] += len(course.given)
        stage.world.fired["chain: given again"] += sum(count > 1 for count in course.given.values())


def _check_sound(stage: Stage, operator: SimProcess, ledger: ChainLedger, log: str) -> None:
    store, life = SimStore(stage.world, operator), stage.world.names[log].life
    # A cursor whose creator has died may land when a collection has taken what is there.
    cursors = CursorStore(store, log, runtime=operator)
    assert life.manifest is not None
    first = life.manifest.first
    for name, offset in cursors.offsets().items():
        if offset < first.position.offset and ledger.living(name, life) is None:
            cursors.delete(name)
    report = scrub(store, log, runtime=operator)
    assert report.sound, report.problems
    reader = LogReader.open(store, log, runtime=operator)
    found = [Message(record.body, record.key) for record in reader.records()]
    assert found == life.messages(reader.manifest()), f"{log} holds other records"


def _check_updated(stage: Stage, operator: SimProcess) -> None:
    """The copy can be updated if its source holds all from its end on, and is then what its source is."""
    store, source, copied = (
        SimStore(stage.world, operator),
        stage.world.names[CHAIN[0]].life,
        stage.world.names[BACKUP].life,
    )
    if not {CHAIN[0], BACKUP} <= {*standing(stage)} or copied.origin is not source:
        return
    assert source.manifest is not None
    bring = partial(update_copy, LogAt(store, CHAIN[0]), LogAt(store, BACKUP), with_cursors=True, runtime=operator)
    collected = source.manifest.first.position.offset > len(copied.records) + 1
    try:
        bring()
    except GarbageCollectedError:
        assert collected or source.passes.tokens, "an update was refused, and nothing that the copy lacks is gone"
        return
    check_same(source, copied)
    assert len(copied.records) == len(source.records), f"the copy ends at {len(copied.records)}, not as its source"
    stage.world.fired["chain: copy is as its source"] += 1
    _check_retired(stage, operator, source, copied)
    _check_no_update_from_the_successor(stage, operator, source)


def _check_no_update_from_the_successor(stage: Stage, operator: SimProcess, source: Oracle) -> None:
    """The cursors of a successor say nothing of the records before it: a copy of the first log does not take them."""
    successor = source.manifest and source.manifest.seal and source.manifest.seal.successor
    if not successor or successor not in standing(stage):
        return
    store = SimStore(stage.world, operator)
    before = CursorStore(store, BACKUP, runtime=operator).list()
    with suppress(InvalidRequestError, GarbageCollectedError):
        update_copy(LogAt(store, successor), LogAt(store, BACKUP), with_cursors=True, runtime=operator)
    after = CursorStore(store, BACKUP, runtime=operator).list()
    assert after == before, f"{BACKUP}: has cursors of {successor}: {[*after]}, before {[*before]}"
    stage.world.fired["chain: no cursors of the successor"] += 1


def _check_retired(stage: Stage, operator: SimProcess, source: Oracle, copied: Oracle) -> None:
    """A copy has no cursor that its source has deleted, so that it can be collected."""
    store = SimStore(stage.world, operator)
    cursors = CursorStore(store, CHAIN[0], runtime=operator)
    assert source.manifest is not None
    cursors.create("operator", source.manifest.next.position)
    for name in [name for name in cursors.list() if name != "operator"]:
        cursors.delete(name)
    update_copy(LogAt(store, CHAIN[0]), LogAt(store, BACKUP), with_cursors=True, runtime=operator)
    left = [*CursorStore(store, BACKUP, runtime=operator).list()]
    assert left == ["operator"], f"{BACKUP}: has the cursors {left}, and its source has retired all but operator"
    change_policy(stage, operator, Policy(), BACKUP)
    stage.world.shared.interval_s = 0.0
    with suppress(CollectionRefusedError):
        collect(store, BACKUP, options=collector_options(0.0), runtime=operator)
    assert copied.manifest is not None
    first, end = copied.manifest.first.position.offset, copied.manifest.next.position.offset
    assert first == end, f"{BACKUP}: nothing needs its records from {first} to {end}, and they are not collected"
    stage.world.fired["chain: retired cursors are gone from the copy"] += 1
