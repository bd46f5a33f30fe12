"""Writers of appends with a name: drivers of series, jobs that are late, and the copy that takes the log's place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.faults.collectors import collector_options
from tests.faults.named_ledger import Attempt, NamedLedger
from tests.faults.store import LOG, Call, SimStore
from wal3_core import (
    LogAt,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    LogWriter,
    Message,
    NotDurableError,
    WriterOptions,
    update_copy,
)
from wal3_core.errors import (
    CollectionRefusedError,
    CursorConflictError,
    InvalidRequestError,
    MissingError,
    UnknownDurabilityError,
)
from wal3_core.format.paths import MANIFEST
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.copy.copier import copy
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, StagedFragment, Stager, install_staged
from wal3_core.store.object_store import FolderStore, ObjectStore

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.plans import Kind
    from tests.faults.simulator import SimProcess

BACKUP = "backup/"
# Fewer than a cursor remembers, with two series.
NIGHTS = 12
# The share of installs whose process sleeps meanwhile.
SLEEPS = 0.2
# The share of updates of a copy in which the process dies.
DIES = 0.3


def drawn_rows(once: Once, dice: Random, variant: str = "") -> tuple[Message, ...]:
    """Make the rows of an append: the same for each attempt, unless they are a variant."""
    names = [f"{once.cursor}/{once.append}/{number}{variant}" for number in range(dice.choice((1, 1, 4, 9)))]
    return tuple(Message(name.encode() + b"." * dice.choice((0, 60)), b"k%d" % dice.randrange(3)) for name in names)


@dataclass
class FatefulStore(SimStore):
    """The world as a process sees it to which something happens after so many calls, or so many from a PUT on."""

    calls_left: int = -1
    after_put: str = ""
    happens: Callable[[], None] = lambda: None

    def _draw(self, kind: Kind, path: str) -> Call:
        if kind == "put" and path == self.after_put:
            self.after_put = ""
        if not self.after_put:
            if self.calls_left == 0:
                self.happens()
            self.calls_left -= 1
        return super()._draw(kind, path)


@dataclass
class NamedHand:
    """One process's attempts, and their outcomes."""

    stage: Stage
    store: FatefulStore
    ledger: NamedLedger
    options: WriterOptions
    log: str = LOG
    # What was staged and may be installed late.
    kept: list[tuple[Once, tuple[Message, ...], list[StagedFragment]]] = field(default_factory=list)

    @property
    def place(self) -> ObjectStore:
        """The store whose log is in use."""
        return FolderStore(self.store, BACKUP) if self.ledger.promoted else self.store

    def make(self, once: Once, dice: Random, tries: int) -> bool:
        """Stage and install an append, repeatedly if it fails; return whether the log is known to have it."""
        rows = drawn_rows(once, self.stage.simulation.dice(f"rows of {once.cursor}/{once.append}"))
        parts: list[StagedFragment] = []
        for _ in range(tries):
            if not parts or dice.random() < 0.5:
                parts = self.stage_rows(rows, dice)
            if not parts:
                continue
            # As the tasks of a job take their time; or the process sleeps, and is thought dead.
            self.stage.simulation.pause(dice.choice((0.0, 0.0, 0.3, 5.0)) * dice.random())
            if dice.random() < SLEEPS:
                sleeps_s = dice.choice((3.0, 10.0, 40.0))
                self.store.happens = partial(self.stage.simulation.pause, sleeps_s)
                self.store.calls_left = dice.randrange(16)
            if self.install(once, rows, parts):
                self.kept.append((once, rows, parts))
                return True
        if parts:
            self.kept.append((once, rows, parts))
        return False

    def stage_rows(self, rows: tuple[Message, ...], dice: Random) -> list[StagedFragment]:
        """Stage rows in one task or two; empty if that failed."""
        at = dice.randrange(len(rows) + 1)
        place, parts = self.place, list[StagedFragment]()
        try:
            for some in (rows[:at], rows[at:]):
                table = pa.table([[row.key for row in some], [row.body for row in some]], schema=MESSAGE_SCHEMA)
                parts += Stager(place, self.log, options=self.options, runtime=self.store.process).stage(table)
        except LogNotFoundError:
            self._create(place)
            return []
        except LogError as error:
            self.stage.excuse(error)
            return []
        return parts

    def _create(self, place: ObjectStore) -> None:
        try:
            LogWriter.create(place, self.log, runtime=self.store.process)
        except LogExistsError:
            pass
        except LogError as error:
            self.stage.excuse(error)

    def install(self, once: Once, rows: tuple[Message, ...], parts: list[StagedFragment]) -> bool:
        """Install what was staged, and record the outcome; return whether the log is known to have it."""
        began_s = self.stage.simulation.now_s
        attempt = self.ledger.begin(Attempt(once, rows, parts[0].log_id, began_s))
        fired = self.stage.world.fired
        try:
            done = install_staged(
                self.place, self.log, parts, once=once, options=self.options, runtime=self.store.process
            )
        except NotDurableError as error:
            attempt.outcome = "refused"
            fired[f"named: {type(error).__name__}"] += 1
        except LogError as error:
            attempt.outcome = "refused" if isinstance(error, LogReplacedError) else "unknown"
            fired[f"named: {type(error).__name__}"] += 1
            # A pass may delete at once what a manifest that was just loaded leads to.
            known = isinstance(error, UnknownDurabilityError | CursorConflictError | LogNotFoundError | MissingError)
            # What was staged for the log is installed in its copy.
            known |= isinstance(error, LogReplacedError) and self.ledger.promoted
            if not known:
                self.stage.excuse(error)
        else:
            attempt.outcome = "repeated" if done.repeated else "made"
            fired[f"named: {attempt.outcome}"] += 1
        attempt.ended_s = self.stage.simulation.now_s
        return attempt.outcome in {"made", "repeated"}


@dataclass(frozen=True, slots=True)
class Driving:
    """The driver of a query: it makes the batches that follow its checkpoint; another one may, too."""

    ledger: NamedLedger
    cursor: str
    series: str
    options: WriterOptions
    batches: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice, ledger = stage.simulation.dice(f"{process.name}/batches"), self.ledger
        hand = NamedHand(stage, FatefulStore(stage.world, process), ledger, self.options)
        number = ledger.next_numbers.get(self.series, 0)
        for _ in range(self.batches):
            stage.simulation.pause(dice.random() * self.pace_s)
            once = Once(self.cursor, f"{self.series}/{number}", self.series, number)
            if hand.make(once, dice, dice.choice((1, 2, 4))) and dice.random() < 0.9:
                ledger.next_numbers[self.series] = max(number + 1, ledger.next_numbers.get(self.series, 0))
                number += 1
            else:
                # The query is started again.
                number = ledger.next_numbers.get(self.series, 0)
            if hand.kept and dice.random() < 0.2:
                hand.install(*dice.choice(hand.kept))


@dataclass(frozen=True, slots=True)
class Nightly:
    """A job whose appends have no series: it repeats earlier ones, and some of them late, as they were staged."""

    ledger: NamedLedger
    cursor: str
    options: WriterOptions
    rounds: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice = stage.simulation.dice(f"{process.name}/nights")
        hand = NamedHand(stage, FatefulStore(stage.world, process), self.ledger, self.options)
        for number in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pace_s)
            if hand.kept and dice.random() < 0.3:
                hand.install(*dice.choice(hand.kept))
                continue
            night = dice.choice((number, dice.randrange(number + 1))) % NIGHTS
            once = Once(self.cursor, f"night {night}")
            if dice.random() < 0.1:
                self._make_others(hand, once, dice, f" by mistake in round {number} of {process.name}")
            else:
                hand.make(once, dice, dice.choice((1, 2)))

    def _make_others(self, hand: NamedHand, once: Once, dice: Random, variant: str) -> None:
        """Append other rows under the name, which no other attempt has."""
        rows = drawn_rows(once, dice, variant)
        parts = hand.stage_rows(rows, dice)
        if parts:
            hand.install(once, rows, parts)


@dataclass(frozen=True, slots=True)
class BackingUp:
    """Makes a copy with cursors, and brings it up to date, until it dies at some call, or the copy is in use.

    If the process dies, so does the source: the copy is used from then on. Few go on with an update then.
    """

    ledger: NamedLedger
    rounds: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = FatefulStore(stage.world, process, happens=partial(self._die, stage, process))
        source, target = LogAt(store, LOG), LogAt(FolderStore(store, BACKUP), LOG)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pace_s)
            if self.ledger.promoted and process.random.random() < 0.9:
                return
            if process.random.random() < DIES:
                # Anywhere, or soon after a commit.
                store.calls_left = process.random.randrange(10, 80)
                if process.random.random() < 0.7:
                    store.calls_left, store.after_put = process.random.randrange(1, 16), f"{BACKUP}{LOG}/{MANIFEST}"
            try:
                done = update_copy(source, target, with_cursors=True, runtime=process)
                stage.world.fired["named: copy updated"] += done.num_records > 0
            except LogNotFoundError:
                self._copy(stage, process, source, target)
            except (InvalidRequestError, CursorConflictError) as error:
                # It is in use.
                stage.world.fired[f"named: update {type(error).__name__}"] += 1
            except LogError as error:
                stage.excuse(error)

    def _die(self, stage: Stage, process: SimProcess) -> None:
        if stage.world.names[f"{BACKUP}{LOG}"].life.manifest is not None:
            self.ledger.promoted = True
            stage.world.fired["named: copy promoted"] += 1
            stage.simulation.kill(process)

    def _copy(self, stage: Stage, process: SimProcess, source: LogAt, target: LogAt) -> None:
        try:
            copy(source, target, with_cursors=True, runtime=process)
        except (InvalidRequestError, LogNotFoundError, LogExistsError, LogReplacedError):
            # Another process makes it.
            return
        except LogError as error:
            stage.excuse(error)


def check_made(stage: Stage, operator: SimProcess, ledger: NamedLedger, options: WriterOptions) -> None:
    """Without faults, each append by name can be repeated, and is made or found; then each life is checked."""
    hand = NamedHand(stage, FatefulStore(stage.world, operator), ledger, options)
    dice = stage.simulation.dice("operator repeats")
    names = stage.world.names
    for ledger.promoted, name in ((False, LOG), (True, f"{BACKUP}{LOG}")):
        manifest = names[name].life.manifest
        if manifest is None or manifest.seal is not None or names[name].life.over_s <= stage.simulation.now_s:
            continue
        single = {attempt.once for attempt in ledger.attempts if not attempt.once.series}
        repeated = sorted(single, key=lambda once: (once.cursor, once.append))
        for once in (*repeated, *ledger.begun.values()):
            _check_repeated(hand, once, dice)
    ledger.check(names.lives)
    _collect_staged(hand)


def _collect_staged(hand: NamedHand) -> None:
    """Collect what was staged and never installed: much more than the orphans of other stories."""
    options = replace(collector_options(0.0), orphans_max=1000)
    hand.stage.world.shared.interval_s = 0.0
    for _ in range(3):
        with suppress(LogNotFoundError, CollectionRefusedError):
            collect(hand.store, LOG, options=options, runtime=hand.store.process)


def _check_repeated(hand: NamedHand, once: Once, dice: Random) -> None:
    rows = drawn_rows(once, hand.stage.simulation.dice(f"rows of {once.cursor}/{once.append}"))
    parts = hand.stage_rows(rows, dice)
    assert parts, f"after healing, {once} cannot be staged"
    mistaken = any(each.name == (once.cursor, once.append) and each.rows != rows for each in hand.ledger.attempts)
    assert hand.install(once, rows, parts) or mistaken, f"after healing, {once} is refused: {hand.ledger.attempts[-1]}"
