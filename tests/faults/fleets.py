"""A fleet in a story: several callers append to several logs, of which only some can be open at a time."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.actors import Stage, await_all, judged
from tests.faults.history import PENDING_S, Append
from tests.faults.store import LOG, SimStore
from wal3_core import LogError, LogPosition, LogReader, Message, scrub
from wal3_core.errors import AppendError, AppendReplacedError, BackPressureError, ClosedError
from wal3_core.fleet.fleet import Fleet

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess
    from wal3_core.options import FleetOptions

SOON_S = 0.001


@dataclass(frozen=True, slots=True)
class FleetWriter:
    """Appends to these logs from several callers at once, marked in one dirty log."""

    logs: tuple[str, ...]
    server: str
    options: FleetOptions
    callers: int
    appends_max: int
    # How many records an append has.
    sizes: tuple[int, ...] = (1, 1, 3)

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        try:
            fleet = Fleet.open(store, server=self.server, options=self.options, runtime=process)
        except LogError as error:
            stage.excuse(error)
            return
        opened = OpenedFleet(stage, store, fleet, self.options.logs_open_max)
        tasks = [
            stage.simulation.spawn(
                process, f"{process.name}/{n}", lambda n=n: self._call(opened, f"{process.name}/{n}")
            )
            for n in range(self.callers)
        ]
        await_all(stage.simulation, tasks)
        fleet.close()
        opened.check_closed()

    def _call(self, opened: OpenedFleet, name: str) -> None:
        dice = opened.stage.simulation.dice(name)
        for index in range(dice.randrange(1, self.appends_max + 1)):
            opened.stage.simulation.pause(dice.choice((0.0, 0.0, 0.1, 2.0, 20.0)))
            records = tuple(Message(f"{name}/{index}/{n}".encode()) for n in range(dice.choice(self.sizes)))
            opened.append(dice.choice(self.logs), records, dice.choice((None, None, None, 0.0, 5.0)))


@dataclass(slots=True)
class OpenedFleet:
    """An open fleet, and the appends without an outcome."""

    stage: Stage
    store: SimStore
    fleet: Fleet
    logs_open_max: int
    under_way: list[Future[LogPosition]] = field(default_factory=list)
    # When appends to a log were last refused because its name had another one, and how often that had changed.
    replaced: dict[str, tuple[float, int]] = field(default_factory=dict)

    def append(self, log: str, records: tuple[Message, ...], timeout_s: float | None) -> None:
        """Append and record the outcome; check that no log with work was closed."""
        append = Append(records, self.stage.simulation.now_s, marked=True)
        self.stage.history_of(log).appends.append(append)
        with judged(self.stage, self.store, append, log=log):
            try:
                future = self.fleet.submit_many(log, records, timeout_s=timeout_s)
            except BackPressureError:
                self.stage.world.fired["refused for pressure"] += 1
                raise
            except (AppendError, ClosedError):
                raise
            except LogError as error:
                # It could not be opened.
                self.stage.excuse(error)
                append.outcome, append.ended_s = "unopened", self.stage.simulation.now_s
                return
            self.under_way.append(future)
            self._check()
            try:
                append.offset = self.store.process.wait(future).offset
            except AppendReplacedError as error:
                self._replaced(log, append, error)
                raise
            self.stage.world.fired["appended by a fleet"] += 1

    def _replaced(self, log: str, append: Append, error: LogError) -> None:
        """A log that was replaced is opened again for the next append."""
        changes = len(self.stage.world.names[log].held)
        refused_s, known = self.replaced.get(log, (PENDING_S, 0))
        if append.began_s > refused_s and known == changes:
            self.stage.fail(f"refused again, and nothing has changed: {error}")
        self.replaced[log] = self.stage.simulation.now_s, changes

    def _check(self) -> None:
        """What has work is open, within the limit."""
        before = [future for future in self.under_way if not future.done()]
        stats = self.fleet.stats()

        def counted() -> bool:
            return sum(not future.done() for future in before) <= stats.appends_waiting

        # An append is counted as ended just before its outcome is set; twice, as the process may be frozen in between.
        for _ in range(2):
            self.stage.simulation.block(counted, SOON_S)
        if not counted():
            self.stage.fail(f"a log was closed with {len(before)} appends under way: {stats}")
        self.under_way = [future for future in self.under_way if not future.done()]
        if stats.logs_open > self.logs_open_max:
            self.stage.fail(f"expected at most {self.logs_open_max} open logs: {stats}")
        self.stage.world.fired["closed for another log"] += stats.logs_closed > 0

    def check_closed(self) -> None:
        """Closing has waited for everything; it is counted a little later."""
        waited = all(future.done() for future in self.under_way)
        self.stage.simulation.pause(1.0)
        stats = self.fleet.stats()
        if not waited or stats.bytes_held or stats.appends_waiting:
            self.stage.fail(f"closed with work: {stats}")


def check_fleet_logs(stage: Stage, operator: SimProcess) -> None:
    """The other logs of a fleet are as whole as the story's own."""
    store = SimStore(stage.world, operator)
    for log, history in stage.histories.items():
        assert log != LOG
        history.check({log_id: life for log_id, life in stage.world.names.lives.items() if life.log == log})
        if stage.world.names[log].life.manifest is None:
            continue
        report = scrub(store, log, runtime=operator)
        assert report.sound, report.problems
        found = [Message(record.body, record.key) for record in LogReader.open(store, log, runtime=operator).records()]
        assert found == stage.world.names[log].life.records, f"{log} holds other records"
