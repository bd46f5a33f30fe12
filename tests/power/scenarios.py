"""The scenarios run on a recorded disk: whole lives, and single acts that are interrupted or cut short."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.effort import every
from tests.power.recorder import Recorder
from tests.power.session import Session, User
from wal3_core.store.backends.local_roots import OWN_FOLDER

NEVER = 10**9


def record(folder: Path, run: Callable[[Session], None], *, store: str = "store") -> Session:
    """Run a scenario on an empty folder; the disk must then hold what was recorded."""
    folder.mkdir(parents=True)
    with Recorder(folder) as recorder:
        session = Session(recorder, store)
        run(session)
    recorder.check_complete()
    return session


def life(session: Session) -> None:
    """Run two writers in turn, with snapshots of both depths, and cursors created, moved and deleted."""
    first, second = session.user("first"), session.user("second")
    first.create()
    first.append()
    first.save_cursor()
    first.append(4)
    first.read()
    first.save_cursor()
    second.append(2)
    second.delete_cursor()
    second.read()
    first.append(3)
    second.save_cursor("d")
    first.save_cursor()
    first.close()
    second.close()


def objects(session: Session) -> None:
    """Call the store directly, in folders that are new, shared and emptied."""
    user = session.user("user")
    store = user.store
    for path in ("x/y/one", "x/y/two", "x/z/one", "top"):
        store.create(path, path.encode() * 3)
    user.swap("x/y/one", b"changed")
    user.swap("x/y/one", b"changed again")
    store.create("x/y/one", b"refused")
    for path in ("x/y/one", "x/y/two", "x/z/one"):
        store.delete(path)
    store.create("x/y/one", b"back again")
    user.swap("x/y/one", b"and changed")
    store.delete("x/y/one")
    store.delete("top")
    store.create("x/y/w/v", b"below")


def nothing(_user: User) -> None:
    """Leave the store empty."""


def begun(user: User) -> None:
    """Make an empty log."""
    user.create()


def grown(user: User) -> None:
    """Make a log that is about to roll fragments into a snapshot, with a cursor."""
    user.create()
    user.append(2)
    user.save_cursor()
    user.append(1)


def create(user: User) -> None:
    user.create()


def append(user: User) -> None:
    user.append(2)
    user.close()


def save_cursor(user: User) -> None:
    user.save_cursor()


def delete_cursor(user: User) -> None:
    user.delete_cursor()
    user.save_cursor()
    user.save_cursor()


# Each act, after the preparation of the store for it.
ACTS: dict[str, tuple[Callable[[User], None], Callable[[User], None]]] = {
    "create": (nothing, create),
    "first append": (begun, append),
    "append and snapshot": (grown, append),
    "first cursor": (begun, save_cursor),
    "save cursor": (grown, save_cursor),
    "delete cursor": (grown, delete_cursor),
}


def step_in(user: User) -> None:
    """Make one call of each kind."""
    user.create()
    user.read()
    user.save_cursor()
    user.append(2)
    user.delete_cursor()
    user.close()


def look_on(user: User) -> None:
    """Read, and change nothing."""
    user.read()


def joined(
    name: str, step: int, *, killed: bool, known: bool = False, others: Callable[[User], None] = step_in
) -> Callable[[Session], None]:
    """Let another process act after this step of an act, which then continues or was killed.

    ``known`` when that process has used the store before, and so considers some of it durable.
    """
    before, act = ACTS[name]

    def run(session: Session) -> None:
        before(session.user("prior"))
        first, second = session.user("first"), session.user("second")
        if known:
            second.create()
            second.save_cursor("own")
            second.delete_cursor("own")
        session.begin()
        if killed:
            session.kill_after_step(session.now + step)
            with session.until_killed():
                act(first)
            others(second)
        else:
            session.after_step(session.now + step, lambda: others(second))
            act(first)

    return run


def moments(folder: Path, name: str, *, known: bool = False) -> list[int]:
    """List the steps of an act that others can see; between them they would do the same."""
    session = record(folder, joined(name, NEVER, killed=False, known=known))
    calls = [step.call for step in session.recorder.steps[session.first :]]
    if os.environ.get("WAL3_POWER_EVERY_STEP"):
        return list(range(1, len(calls) + 1))
    seen = [not call.startswith(("sync ", "lock ")) and f"/{OWN_FOLDER}" not in call.split()[-1] for call in calls]
    return [number for number, changed in enumerate(seen, 1) if changed][:: every(2)]
