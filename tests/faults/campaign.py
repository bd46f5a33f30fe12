"""Many seeds, on all processors: what happened in them, and how to replay one that broke a promise."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.faults.chain_mutants import CHAIN_MUTANTS
from tests.faults.chain_worlds import chain_story
from tests.faults.mutants import MUTANTS
from tests.faults.named_mutants import NAMED_MUTANTS
from tests.faults.named_worlds import named_story
from tests.faults.plans import Script
from tests.faults.queue_mutants import QUEUE_WORLD_MUTANTS
from tests.faults.queue_worlds import queue_story
from tests.faults.story import Story
from tests.faults.view_casts import drawn_view_story
from tests.faults.view_mutants import KEYED_MUTANTS, READER_MUTANTS, SUBSCRIPTION_MUTANTS
from tests.lanes import hash_all_in_lanes_if_asked
from tests.mutations import Mutation, applied

CHUNK = 25
REPORT_S = 30.0


@dataclass
class Tally:
    """What happened in some seeds; ``failed`` is the first that broke a promise, and how."""

    seeds: int = 0
    virtual_s: float = 0.0
    steps: int = 0
    calls: int = 0
    versions: int = 0
    appends: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    failed: tuple[int, str] | None = None

    def add(self, story: Story) -> None:
        stage = story.stage
        self.seeds += 1
        self.virtual_s += stage.simulation.now_s
        self.steps += stage.simulation.steps
        self.calls += stage.world.calls
        self.versions += stage.world.oracle.versions
        self.appends.update(append.outcome for append in stage.history.appends)
        self.fired.update(stage.world.fired)
        self.fired["reads"] += len(stage.history.reads)
        self.fired.update(stage.world.oracle.seen)
        self.fired["cursors loaded"] += sum(len(cursor.loads) for cursor in stage.world.oracle.cursors.values())

    def merge(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.virtual_s += other.virtual_s
        self.steps += other.steps
        self.calls += other.calls
        self.versions += other.versions
        self.appends.update(other.appends)
        self.fired.update(other.fired)
        if other.failed is not None and (self.failed is None or other.failed < self.failed):
            self.failed = other.failed

    def to_json(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "violations": 0 if self.failed is None else 1,
            "virtual_hours": round(self.virtual_s / 3600, 1),
            "steps": self.steps,
            "store_calls": self.calls,
            "manifest_versions": self.versions,
            "appends": dict(sorted(self.appends.items())),
            "fired": dict(sorted(self.fired.items())),
        }


def broken(story: Story) -> str | None:
    """Run a story; return how it broke a promise, if it did."""
    try:
        story.tell()
    except Exception:  # noqa: BLE001 - whatever it was, the seed is printed
        return traceback.format_exc()
    return None


def view_story(seed: int) -> Story:
    """Make the story of a seed about subscriptions and consumers by key."""
    return drawn_view_story(seed, random.Random(seed))


# Of each kind of world: how it is made from a seed, and the defects that it must find.
WORLDS: dict[str, tuple[Callable[[int], Story], tuple[Mutation, ...]]] = {
    "logs": (Story, (*MUTANTS,)),
    "views": (view_story, (*SUBSCRIPTION_MUTANTS, *KEYED_MUTANTS, *READER_MUTANTS)),
    "queues": (queue_story, QUEUE_WORLD_MUTANTS),
    "named": (named_story, NAMED_MUTANTS),
    "lives": (chain_story, CHAIN_MUTANTS),
}


def tell(seeds: Sequence[int], make: Callable[[int], Story] = Story) -> Tally:
    """Run the stories of some seeds, up to the first that fails."""
    tally = Tally()
    for seed in seeds:
        story = make(seed)
        how = broken(story)
        if how is not None:
            tally.failed = seed, how
            return tally
        tally.add(story)
    return tally


def run(
    seeds: range, *, processes: int, progress: Callable[[Tally], None], make: Callable[[int], Story] = Story
) -> Tally:
    """Run the stories of all seeds; ends early when one fails."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    total = Tally()
    for tally in _tallies(chunks, processes, partial(tell, make=make)):
        total.merge(tally)
        progress(total)
        if total.failed is not None:
            break
    return total


def _tallies(
    chunks: Sequence[Sequence[int]], processes: int, work: Callable[[Sequence[int]], Tally]
) -> Iterator[Tally]:
    if processes == 1:
        yield from map(work, chunks)
        return
    # Spawned: a fork would inherit the threads that Arrow has begun. Replaced regularly, to keep them small.
    with multiprocessing.get_context("spawn").Pool(processes, hash_all_in_lanes_if_asked, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(work, chunks)


def with_faults(story: Story, faults: Mapping[int, str]) -> Story:
    """Let a story have these faults, by store call, in place of those that it would draw."""
    story.plan = Script(faults)
    return story


def shrink(
    seed: int, faults: Mapping[int, str], fails: Callable[[Story], bool], make: Callable[[int], Story] = Story
) -> dict[int, str]:
    """Remove faults, half of them at a time and then one by one, as long as the seed still fails."""
    kept = dict(faults)
    size = max(1, len(kept) // 2)
    while True:
        indexes = sorted(kept)
        for at in range(0, len(indexes), size):
            fewer = {index: kept[index] for index in kept if index not in indexes[at : at + size]}
            if fails(with_faults(make(seed), fewer)):
                kept = fewer
                break
        else:
            if size == 1:
                return kept
            size //= 2


def _show_failure(seed: int, how: str, mutant: str | None, kind: str) -> None:
    print(how)
    extra = ("" if mutant is None else f" --mutant {mutant!r}") + ("" if kind == "logs" else f" --{kind}")
    print(
        f"seed {seed} failed; replay it with: {sys.executable} -m tests.faults.campaign --first {seed} --seeds 1{extra}"
    )
    make = WORLDS[kind][0]
    story = make(seed)
    broken(story)
    fired = story.stage.world.fired_at
    if broken(with_faults(make(seed), fired)) is not None:
        kept = shrink(seed, fired, lambda candidate: broken(candidate) is not None, make)
        print(f"of its {len(fired)} faults these suffice (store call: fault): {kept or 'none at all'}")


def _progress(seeds: int) -> Callable[[Tally], None]:
    began_s = reported_s = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal reported_s
        now_s = time.monotonic()
        if now_s - reported_s > REPORT_S:
            reported_s = now_s
            left_s = (now_s - began_s) / max(1, tally.seeds) * (seeds - tally.seeds)
            print(f"{tally.seeds:,} of {seeds:,} seeds, about {left_s / 60:.0f} min left", flush=True)

    return progress


def _seeds_to_find(name: str, seeds: range, kind: str) -> tuple[str, int | None, str]:
    """Report how many seeds it takes to find a mutant, None if these do not find it, and how it shows."""
    with applied(_mutant(name, kind)):
        tally = run(seeds, processes=1, progress=lambda _: None, make=WORLDS[kind][0])
    if tally.failed is None:
        return name, None, "NOT FOUND"
    seed, how = tally.failed
    return name, seed - seeds.start + 1, how.strip().splitlines()[-1][:100].replace("|", "")


def sensitivity(seeds: range, processes: int, kind: str) -> int:
    """Report for every mutant how many seeds it took to find it; return the number of those not found."""
    missed = 0
    names = [mutant.name for mutant in WORLDS[kind][1]]
    with multiprocessing.get_context("spawn").Pool(processes, hash_all_in_lanes_if_asked, maxtasksperchild=1) as pool:
        for name, count, how in pool.imap(partial(_seeds_to_find, seeds=seeds, kind=kind), names):
            missed += count is None
            print(f"| {name} | {count or len(seeds)} | {how} |", flush=True)
    return missed


def _canary(tally: Tally) -> int:
    if tally.failed is None:
        print(f"the canary lives: {tally.seeds} seeds did not find the defect")
        return 1
    seed, how = tally.failed
    print(f"the canary died, as it must, of seed {seed}: {how.strip().splitlines()[-1][:200]}")
    return 0


def _mutant(name: str, kind: str) -> Mutation:
    mutants = {mutant.name: mutant for mutant in WORLDS[kind][1]}
    if name not in mutants:
        sys.exit(f"expected one of {[*mutants]}, found {name!r}")
    return mutants[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many at a time")
    views, queues = "worlds of subscriptions and consumers by key", "worlds of delay queues"
    parser.add_argument("--views", dest="kind", action="store_const", const="views", default="logs", help=views)
    parser.add_argument("--queues", dest="kind", action="store_const", const="queues", help=queues)
    named = "worlds of appends with a name"
    parser.add_argument("--named", dest="kind", action="store_const", const="named", help=named)
    lives = "worlds of logs that are migrated, copied and restored, with all who have cursors there"
    parser.add_argument("--lives", dest="kind", action="store_const", const="lives", help=lives)
    parser.add_argument("--mutant", help="put this defect into the library first: the campaign must fail")
    parser.add_argument("--sensitivity", action="store_true", help="how many seeds each defect takes to be found")
    parser.add_argument("--canary", action="store_true", help="succeed only when a promise is found broken")
    parser.add_argument("--report", type=Path, help="write the figures to this file as JSON")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    hash_all_in_lanes_if_asked()
    if given.sensitivity:
        sys.exit(sensitivity(seeds, given.processes, given.kind))
    with ExitStack() as stack:
        if given.mutant:
            stack.enter_context(applied(_mutant(given.mutant, given.kind)))
        # A mutant exists in this process only.
        processes = 1 if given.mutant or given.seeds <= CHUNK else given.processes
        began_s = time.monotonic()
        tally = run(seeds, processes=processes, progress=_progress(given.seeds), make=WORLDS[given.kind][0])
        if given.canary:
            sys.exit(_canary(tally))
        if tally.failed is not None:
            _show_failure(*tally.failed, given.mutant, given.kind)
            sys.exit(1)
    figures = tally.to_json() | {"seconds": round(time.monotonic() - began_s)}
    print(json.dumps(figures, indent=2))
    if given.report:
        given.report.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
