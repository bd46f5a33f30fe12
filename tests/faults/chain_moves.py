"""What happens to whole logs in a story of chains: they are migrated, copied, updated, destroyed and restored."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.chain_owners import attempted
from tests.faults.compactors import change_policy
from tests.faults.second_lives import Hands
from tests.faults.store import SimStore
from wal3_core import (
    Consumer,
    FeedSubscription,
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    SealedError,
    update_copy,
)
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.format.cursor import Cursor
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.log.maintain.copy.copier import copy
from wal3_core.log.maintain.sealer import migrate, seal
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import QueueDefinition

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess

# The logs of a chain, in their order; a copy that is updated, and another one.
CHAIN = ("a", "b", "c")
BACKUP, OTHER_COPY = "backup/a", "other"


@dataclass(frozen=True, slots=True)
class Migrating:
    """Moves a log on to its successor at some moment, or only seals it; tries again when it fails."""

    log: str
    successor: str | None
    after_s: float
    tries: int = 4

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        for _ in range(self.tries):
            with attempted(stage):
                try:
                    self._move(SimStore(stage.world, process))
                except (SealedError, LogExistsError) as error:
                    stage.world.fired[f"chain: migration {type(error).__name__}"] += 1
                    return
                stage.world.fired["chain: sealed" if self.successor is None else "chain: migrated"] += 1
                return

    def _move(self, store: SimStore) -> None:
        if self.successor is None:
            seal(store, self.log, reason="the end", runtime=store.process)
        else:
            migrate(store, self.log, self.successor, reason="full", runtime=store.process)


@dataclass(frozen=True, slots=True)
class ChainCopying:
    """Copies a log, from an offset or whole, with its cursors or without."""

    source: str
    target: str
    from_offset: int | None
    with_cursors: bool
    after_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        for _ in range(3):
            with attempted(stage):
                try:
                    self._copy(SimStore(stage.world, process))
                except (InvalidRequestError, GarbageCollectedError, LogReplacedError) as error:
                    # Another process makes it, or the log does not hold the offset.
                    stage.world.fired[f"chain: copy {type(error).__name__}"] += 1
                    stage.simulation.pause(1.0)
                    continue
                stage.world.fired["chain: copied"] += 1
                return

    def _copy(self, store: SimStore) -> None:
        source, target = LogAt(store, self.source), LogAt(store, self.target)
        copy(source, target, from_offset=self.from_offset, with_cursors=self.with_cursors, runtime=store.process)


@dataclass(frozen=True, slots=True)
class BackingUp:
    """Makes a copy of a log, and brings it up to date now and then; or only brings up to date what others made."""

    source: str
    target: str
    with_cursors: bool
    rounds: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pace_s)
            with attempted(stage):
                try:
                    update(stage, store, self.source, self.target, with_cursors=self.with_cursors)
                except LogNotFoundError:
                    with contextlib.suppress(InvalidRequestError, LogReplacedError):
                        source, target = LogAt(store, self.source), LogAt(store, self.target)
                        copy(source, target, with_cursors=self.with_cursors, runtime=process)
                except (InvalidRequestError, GarbageCollectedError, LogReplacedError) as error:
                    # Its source was restored from it, is collected or compacted beyond its end.
                    stage.world.fired[f"chain: update {type(error).__name__}"] += 1


def update(stage: Stage, store: SimStore, source: str, target: str, *, with_cursors: bool) -> None:
    """Bring a copy up to date, and check that it holds what its source does."""
    names = stage.world.names
    before, copied = names[source].life, names[target].life
    held, lists = len(before.records), _lists(before)
    done = update_copy(LogAt(store, source), LogAt(store, target), with_cursors=with_cursors, runtime=store.process)
    stage.world.fired["chain: copy updated"] += done.num_records > 0
    if names[source].life is before and names[target].life is copied:
        assert len(copied.records) >= held, f"{target}: updated, and ends at {len(copied.records)} of {held}"
        check_same(before, copied)
        if with_cursors:
            _check_lists(before, lists, copied)


def _lists(life: Oracle) -> dict[str, set[str]]:
    """Return which named appends the cursors of a log's writers name."""
    versions = {name: cursor.landed[-1] for name, cursor in life.cursors.items()}
    return {
        name: {each.naming for each in version.appends}
        for name, version in versions.items()
        if isinstance(version, Cursor) and version.appends
    }


def _check_lists(source: Oracle, before: dict[str, set[str]], copied: Oracle) -> None:
    """A copy that was updated names the appends that its source named, also if no other update was beside it."""
    now, held = _lists(source), _lists(copied)
    for name, naming in before.items():
        if now.get(name) == naming:
            lacks = naming - held.get(name, set())
            assert not lacks, f"{copied.log}: cursor {name} lacks appends that its source's names: {lacks}"


def check_same(source: Oracle, copied: Oracle) -> None:
    """A copy holds the records of its source, and no others, as far as neither has dropped them."""
    assert len(copied.records) <= len(source.records), f"{copied.log} goes beyond {source.log}"
    for offset in range(max(source.begins, copied.begins), len(copied.records) + 1):
        known = offset not in source.dropped and offset not in copied.dropped
        same = copied.records[offset - 1] == source.records[offset - 1]
        assert same or not known, f"{copied.log} at {offset}: other than {source.log}"


@dataclass(frozen=True, slots=True)
class Restoring:
    """Destroys the log, and makes it again from its backup."""

    after_s: float
    pause_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        hands = Hands(stage, SimStore(stage.world, process), with_cursors=True)
        stage.simulation.pause(self.after_s)
        if stage.world.names[BACKUP].life.manifest is None:
            return
        for _ in range(3):
            with attempted(stage):
                hands._destroy(CHAIN[0], also_pinned=True)
                stage.world.fired["chain: destroyed"] += 1
                break
        for _ in range(3):
            stage.simulation.pause(process.random.random() * self.pause_s)
            with attempted(stage):
                try:
                    hands._copy(BACKUP, CHAIN[0])
                except InvalidRequestError as error:
                    stage.world.fired[f"chain: restore {type(error).__name__}"] += 1
                    return
                stage.world.fired["chain: restored"] += 1
                return


@dataclass(frozen=True, slots=True)
class Ruling:
    """Changes the policies of logs, some of which compact or arrange them, or keep records for a while."""

    logs: tuple[str, ...]
    rounds: int
    pace_s: float
    compacts: bool

    def play(self, stage: Stage, process: SimProcess) -> None:
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pace_s)
            with attempted(stage):
                policy = drawn_policy(process.random, compacts=self.compacts)
                change_policy(stage, process, policy, process.random.choice(self.logs))


def drawn_policy(dice: Random, *, compacts: bool) -> Policy:
    """Choose a policy whose limits matter within a story."""
    either = (Cleanup.COLLECT, Cleanup.COLLECT, Cleanup.COLLECT, Cleanup.NOTHING)
    cleanup = dice.choice((*Cleanup,) if compacts else either)
    collects, drops = cleanup in {Cleanup.COLLECT, Cleanup.BOTH}, cleanup in {Cleanup.COMPACT, Cleanup.BOTH}
    arranges = compacts and dice.random() < 0.5
    retention_s = dice.choice((None, 1, 30)) if collects else None
    return Policy(
        cleanup=cleanup,
        retention_s=retention_s,
        percent_max=dice.choice((None, 100)) if collects else None,
        min_dirty_percent=0 if arranges or drops else None,
        delete_retention_s=dice.choice((0, 5)) if drops else None,
        arrange_by_key=arranges,
    )


@dataclass(frozen=True, slots=True)
class Intruding:
    """Opens the cursors of other kinds of owners, which must be refused."""

    ledger: ChainLedger
    names: tuple[str, ...]
    rounds: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), process.random
        for _ in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pace_s)
            name, log = dice.choice(self.names), dice.choice(CHAIN)
            life = stage.world.names[log].life
            course = self.ledger.living(name, life)
            if course is None or not self.ledger.has(name, life):
                continue
            with attempted(stage):
                try:
                    self._intrude(store, log, name)
                except InvalidRequestError:
                    stage.world.fired["chain: intruder refused"] += 1
                    continue
                # The name may lead to another log by now.
                taken = course.living and stage.world.names[log].life is life
                assert not taken, f"{log}: the cursor of {name} was taken by an owner of another kind"

    def _intrude(self, store: SimStore, log: str, name: str) -> None:
        if name.startswith("c"):
            FeedSubscription.open(store, log, name, runtime=store.process)
            return
        with Consumer(store, log, name, runtime=store.process):
            pass


def check_unmovable(stage: Stage, operator: SimProcess) -> None:
    """A queue and a dirty log are not migrated, and are as they were."""
    store = SimStore(stage.world, operator)
    DelayQueue.create(store, "q", QueueDefinition(), runtime=operator)
    DirtyLog.open_or_create(store, "server", lanes_max=1, runtime=operator).close()
    for log in ("q", "dirty/server"):
        with contextlib.suppress(InvalidRequestError):
            migrate(store, log, "q2", reason="full", runtime=operator)
            stage.fail(f"{log} was migrated")
        manifest = stage.world.names[log].life.manifest
        assert manifest is not None
        assert manifest.seal is None, f"{log} was sealed, and is not to be migrated"
        assert stage.world.names["q2"].entry is None, f"{log}: the name of its successor is kept"
