"""Key compaction in a story: passes, changes of the policy, and the cast around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.faults.actors import (
    Actor,
    HistoryReader,
    Maintainer,
    Scrubber,
    Stage,
    TailReader,
    Writer,
    await_all,
    drawn_options,
)
from tests.faults.collectors import Collecting, Copying, Packing, Pinning, Sealing
from tests.faults.cursor_mover import Consumer, CursorMover
from tests.faults.second_lives import Reusing, drawn_steps
from tests.faults.store import LOG, SimStore
from wal3_core import LogError, LogNotFoundError, LogReplacedError, ReaderOptions
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import KeyCompactionRefusedError, UnavailableError
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN, Cleanup, Policy
from wal3_core.options import KeyCompactorOptions, RetryOptions, SnapshotCompactorOptions
from wal3_core.store.documents.policy_store import PolicyStore

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess
    from wal3_core.compaction.reports import KeyCompactionReport

# The share of stories whose log is compacted by key.
COMPACTED = 0.15
# Until a policy is in force that compacts.
TRIES_MAX = 20
RETRY = RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5)


@dataclass(frozen=True, slots=True)
class Terms:
    """Chooses policies: mostly those that compact, and always those whose records need keys."""

    pace_s: float

    def draw(self, dice: Random) -> Policy:
        drawn = Policy(
            cleanup=dice.choice((Cleanup.COMPACT, Cleanup.COMPACT, Cleanup.BOTH)),
            min_compaction_lag_s=dice.choice((None, None, 1, 5)),
            delete_retention_s=dice.choice((0, 0, 1, int(self.pace_s * 5))),
            min_dirty_percent=dice.choice((0, 50)),
            compacted_fragment_bytes=dice.choice((None, COMPACTED_FRAGMENT_BYTES_MIN)),
        )
        # Some passes arrange by key; not a draw of its own, so that stories of known seeds stay what they are.
        return replace(drawn, arrange_by_key=drawn.compacted_fragment_bytes is None)


@dataclass(frozen=True, slots=True)
class Governing:
    """Lets the log be compacted as soon as there is one, and changes the terms now and then."""

    terms: Terms
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        changed = 0
        for _ in range(TRIES_MAX):
            changed += change_policy(stage, process, self.terms.draw(process.random))
            if changed == self.rounds:
                return
            stage.simulation.pause(process.random.random() * self.terms.pace_s if changed else 0.1)


def change_policy(stage: Stage, process: SimProcess, policy: Policy, log: str = LOG) -> bool:
    """Change the policy, and tell whether that is certain; from then on no pass uses an earlier one."""
    try:
        policies = PolicyStore(SimStore(stage.world, process), log, runtime=process, retry=RETRY)
        changed = policies.change(lambda _: policy)
    except (LogNotFoundError, LogReplacedError):
        return False
    except LogError as error:
        stage.excuse(error)
        return False
    stage.world.names.lives[changed.log_id].passes.returned(changed)
    stage.world.fired["policy changed"] += 1
    return True


@dataclass(frozen=True, slots=True)
class KeyCompacting:
    """Compacts repeatedly, some times only as far as an offset."""

    rounds: int
    pause_s_max: float
    options: KeyCompactorOptions
    log: str = LOG

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice = process.random
        for _ in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pause_s_max)
            if dice.random() < 0.3:
                _run_in_steps(stage, process, self.options, self.log)
                continue
            limit = dice.randrange(1, 20) if dice.random() < 0.2 else None
            force = dice.random() < 0.7
            run_pass(stage, process, self.options, log=self.log, limit_offset=limit, force=force)


def _run_in_steps(stage: Stage, process: SimProcess, options: KeyCompactorOptions, log: str) -> None:
    """Merge, and let two tasks install the pass at about the same time, as a run that was thought dead may do."""

    def compactor() -> KeyCompactor:
        return KeyCompactor(SimStore(stage.world, process), log, options=options, runtime=process)

    with excused_pass(stage):
        token = compactor().merge(force=True).token
        if token is None:
            return
        tasks = [
            stage.simulation.spawn(process, f"{process.name}:{n}", lambda: _install(stage, process, compactor(), token))
            for n in range(2)
        ]
        await_all(stage.simulation, tasks)


def _install(stage: Stage, process: SimProcess, compactor: KeyCompactor, token: str) -> None:
    stage.simulation.pause(process.random.random() * 0.3)
    with excused_pass(stage):
        done = compactor.install(token)
        stage.world.fired["installed in steps"] += done.overtaken is None and not done.repeated
        stage.world.fired["installed already"] += done.repeated


@contextmanager
def excused_pass(stage: Stage) -> Iterator[None]:
    """Ignore an error of a pass that this world explains."""
    try:
        yield
    except (LogNotFoundError, KeyCompactionRefusedError):
        pass
    except UnavailableError as error:
        if "not compacted" not in str(error):
            stage.excuse(error)
        stage.world.fired["compaction gave up"] += 1
    except LogError as error:
        stage.excuse(error)


def run_pass(
    stage: Stage,
    process: SimProcess,
    options: KeyCompactorOptions,
    *,
    log: str = LOG,
    limit_offset: int | None,
    force: bool,
) -> KeyCompactionReport | None:
    """Run a pass, and count how it went; None for one that others or faults prevented."""
    with excused_pass(stage):
        compactor = KeyCompactor(SimStore(stage.world, process), log, options=options, runtime=process)
        done = compactor.compact(limit_offset=limit_offset, force=force)
        assert done.proof.holds
        stage.world.fired["compacted"] += done.installed
        stage.world.fired["superseded"] += done.num_superseded > 0
        stage.world.fired["tombstones expired"] += done.num_expired > 0
        stage.world.fired["compaction overtaken"] += done.num_overtaken > 0
        return done
    return None


def drawn_key_compacting(dice: Random, pace_s: float) -> KeyCompacting:
    """Passes of another shape than the writers', a few objects at a time."""
    options = KeyCompactorOptions(
        snapshots=drawn_options(dice).snapshots,
        requests_ahead=dice.choice((1, 3)),
        plans_max=dice.choice((2, 8)),
        snapshots_loaded_max=dice.choice((0, 8)),
        retry=RETRY,
    )
    return KeyCompacting(dice.choice((4, 8)), pace_s, options)


def compacted_cast(dice: Random, *, brief: bool, lives: bool) -> dict[str, Actor]:
    """Writers of records with keys, passes, and all that may come in between."""
    pace_s = 0.4 if brief else dice.choice((1.0, 6.0))
    cast: dict[str, Actor] = {
        f"writer{number}": Writer(drawn_options(dice), dice.choice((1, 3)), 7, rounds=dice.choice((1, 3)), keyed=True)
        for number in range(dice.choice((1, 2, 3)))
    }
    cast["governor"] = Governing(Terms(pace_s), dice.choice((1, 2, 4)))
    cast["compactor0"] = drawn_key_compacting(dice, pace_s)
    reading = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, snapshots_loaded_max=dice.choice((1, 8)))
    packing = SnapshotCompactorOptions(snapshots=drawn_options(dice).snapshots, retry=RETRY)
    chances: dict[str, tuple[float, Actor]] = {
        "compactor1": (0.5, drawn_key_compacting(dice, pace_s)),
        "tail": (0.5, TailReader(reading)),
        "history": (0.6, HistoryReader(reading, 4)),
        "mover0": (0.5, CursorMover("c", 8, pace_s)),
        "mover1": (0.3, CursorMover("d", 5, pace_s)),
        "consumer": (0.3, Consumer("e", 30, pace_s / 8)),
        "scrubber": (0.2, Scrubber(2)),
        "maintainer": (0.2, Maintainer(5)),
        "collector0": (0.6, Collecting(6, pace_s)),
        "collector1": (0.2, Collecting(3, pace_s)),
        "pinner": (0.3, Pinning(dice.random() * pace_s, dice.choice((0.1, 10.0)), rounds=2)),
        "packer": (0.3, Packing(3, pace_s, packing)),
        "copier": (0.2, Copying(dice.random() * pace_s * 3)),
        "sealer": (
            0.0 if lives else 0.1,
            Sealing(dice.random() * pace_s * 4, "successor" if dice.random() < 0.5 else None),
        ),
        "reuser": (0.7 if lives else 0.0, Reusing(drawn_steps(dice, pace_s * 2), with_cursors=dice.random() < 0.6)),
    }
    return cast | {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}


def finish_compaction(stage: Stage, operator: SimProcess) -> None:
    """With every fault healed a pass leaves one record of each key; then the log is collected as others are."""
    terms = Policy(cleanup=Cleanup.COMPACT, delete_retention_s=0, min_dirty_percent=0)
    change_policy(stage, operator, terms)
    for _ in range(2):
        done = run_pass(stage, operator, KeyCompactorOptions(retry=RETRY), limit_offset=None, force=True)
        # A cursor may keep all of it.
        assert done is not None, "no pass succeeds after healing"
        assert done.installed or done.plan.num_fragments == 0, f"nothing was compacted: {done}"
        stage.simulation.pause(1.0)
    change_policy(stage, operator, Policy())
