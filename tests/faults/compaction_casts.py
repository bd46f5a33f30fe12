"""Casts of crashes.py around one pass of key compaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Stage, append_once
from tests.faults.collectors import Collecting, Copying, excused
from tests.faults.compactors import RETRY, change_policy, run_pass
from tests.faults.cursor_mover import Hand
from tests.faults.second_lives import Reusing
from tests.faults.store import LOG, SimStore
from wal3_core import LogPosition, LogWriter, Message, WriterOptions
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.options import KeyCompactorOptions

if TYPE_CHECKING:
    from tests.faults.simulator import SimProcess


@dataclass(frozen=True, slots=True)
class KeyedAppends:
    """Appends records one after another, each a fragment: values of two keys, or the only tombstone of its key."""

    options: WriterOptions
    name: str
    count: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        with excused(stage):
            self._append(stage, SimStore(stage.world, process), process)

    def _append(self, stage: Stage, store: SimStore, process: SimProcess) -> None:
        with LogWriter.open(store, LOG, options=self.options, runtime=process) as writer:
            for number in range(self.count):
                key, body = b"key%d" % (number % 2), f"{self.name}/{number}".encode()
                gone = number % 3 == 2
                append_once(stage, store, writer, (Message(None, b"gone " + body) if gone else Message(body, key),))


@dataclass(frozen=True, slots=True)
class Compactable:
    """Leaves a log with a part that was compacted, tombstones of it that have expired, and a part that is dirty.

    With ``keeps_all`` passes arrange the log by key and drop nothing; the first part was arranged.
    """

    options: WriterOptions
    keeps_all: bool = False

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.compacts = True
        LogWriter.open_or_create(SimStore(stage.world, process), LOG, runtime=process).close()
        terms = Policy(cleanup=Cleanup.COMPACT, delete_retention_s=0, min_dirty_percent=0)
        if self.keeps_all:
            terms = Policy(arrange_by_key=True, min_dirty_percent=0)
        change_policy(stage, process, terms)
        KeyedAppends(self.options, "first", 6).play(stage, process)
        OnePass(KeyCompactorOptions(retry=RETRY)).play(stage, process)
        stage.simulation.pause(1.0)
        KeyedAppends(self.options, "second", 5).play(stage, process)


@dataclass(frozen=True, slots=True)
class OnePass:
    """Runs a pass."""

    options: KeyCompactorOptions

    def play(self, stage: Stage, process: SimProcess) -> None:
        run_pass(stage, process, self.options, limit_offset=None, force=True)


@dataclass(frozen=True, slots=True)
class Moving:
    """Creates a cursor, and moves it back and on."""

    def play(self, stage: Stage, process: SimProcess) -> None:
        hand = Hand.reaching(stage, SimStore(stage.world, process), "c")
        for offset in (5, 2, 7) if hand else ():
            if hand.witness is None:
                hand.load()
            hand.move(LogPosition(offset, 0))


@dataclass(frozen=True, slots=True)
class Changing:
    """Lets records become older before they are compacted."""

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(process.random.random() * 0.5)
        change_policy(stage, process, Policy(cleanup=Cleanup.COMPACT, min_compaction_lag_s=3600))


def arranging_casts(options: WriterOptions) -> dict[str, dict[str, Actor]]:
    """Return those whose prelude is a ``Compactable`` that keeps all: the same passes, beside what minds them most."""
    casts = compaction_casts(options)
    beside = ("", " while appending", " while moving a cursor", " while collecting", " while copying")
    return {f"arrange by key{each}": casts[f"compact by key{each}"] for each in beside}


def compaction_casts(options: WriterOptions) -> dict[str, dict[str, Actor]]:
    """Return a cast for each scenario by name; calls of all its actors fail in turn. Its prelude is ``Compactable``."""
    one = OnePass(KeyCompactorOptions(snapshots=options.snapshots, requests_ahead=2, retry=options.retry))
    again = Reusing(((0.0, "destroy"), (0.0, "create")), with_cursors=True)
    return {
        "compact by key": {"victim": one},
        "compact by key while appending": {"victim": one, "writer": KeyedAppends(options, "beside", 3)},
        "compact by key while moving a cursor": {"victim": one, "mover": Moving()},
        "compact by key while changing the policy": {"victim": one, "governor": Changing()},
        "compact by key while collecting": {"victim": one, "collector": Collecting(2, 0.1)},
        "two passes at once": {"victim": one, "other": one},
        "compact by key while copying": {"victim": one, "copier": Copying(0.0)},
        "compact by key while the log is destroyed": {"victim": one, "reuser": again},
    }
