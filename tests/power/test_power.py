"""A power loss breaks no promise of the local store, whatever the file system kept.

With WAL3_POWER_EVERY_STEP=1 others interrupt after every step of an act, not only after those they can see.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.mutations import Mutation, applied
from tests.power.checker import BrokenPromiseError, Checker
from tests.power.defects import DEFECTS
from tests.power.recorder import UnknownCallError
from tests.power.scenarios import ACTS, joined, life, look_on, moments, objects, record
from tests.power.volume import ROOT, Entry, Step, Sync, Volume, Write

if TYPE_CHECKING:
    from tests.power.session import Session

MEMORY = Path("/dev/shm")
# In one worker: a disk is checked once for all runs that leave it.
pytestmark = pytest.mark.xdist_group("power")


@pytest.fixture
def disk() -> Iterator[Path]:
    """An empty folder, in memory if possible: hundreds of disks are laid out."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    """One checker for all runs of the correct store, which often produce the same disks."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Checker(Path(folder))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [life, objects])
def test_what_was_acknowledged_survives_and_nothing_is_torn(disk: Path, scenario: Callable[[Session], None]) -> None:
    session, checker = record(disk / "run", scenario), Checker(disk / "cuts")

    checker.check(session)

    assert checker.disks > 30


@pytest.mark.slow
def test_store_survives_when_its_folder_is_made_with_its_parents(disk: Path) -> None:
    session = record(disk / "run", life, store="deep/er/store")

    Checker(disk / "cuts").check(session)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "overtaken"])
@pytest.mark.parametrize(
    ("act", "known"),
    # A process that has used the log has found it created.
    [
        *((act, False) for act in ACTS),
        *(pytest.param(act, True, marks=pytest.mark.repeat) for act in ACTS if act != "create"),
    ],
)
def test_state_that_others_build_on_an_unfinished_act_survives(
    disk: Path, checker: Checker, act: str, *, killed: bool, known: bool
) -> None:
    for moment in moments(disk / "whole", act, known=known):
        checker.check(record(disk / str(moment), joined(act, moment, killed=killed, known=known)))

    assert checker.disks


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "under way"])
@pytest.mark.parametrize("act", ["first append", "append and snapshot"])
def test_records_read_from_an_unfinished_append_survive(
    disk: Path, checker: Checker, act: str, *, killed: bool
) -> None:
    """Readers see a version as soon as it has its name, before its folder is synced."""
    for moment in moments(disk / "whole", act):
        checker.check(record(disk / str(moment), joined(act, moment, killed=killed, others=look_on)))

    assert checker.disks


@pytest.mark.repeat
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defect_is_found(disk: Path, defect: Mutation) -> None:
    checker = Checker(disk / "cuts")

    with applied(defect), pytest.raises(BrokenPromiseError, match="when power is lost after step"):
        checker.check(record(disk / "objects", objects))
        for moment in moments(disk / "whole", "first cursor"):
            checker.check(record(disk / str(moment), joined("first cursor", moment, killed=True)))
        for moment in moments(disk / "appended", "first append"):
            run = joined("first append", moment, killed=False, others=look_on)
            checker.check(record(disk / f"append {moment}", run))
        for moment in moments(disk / "rolled", "append and snapshot"):
            checker.check(record(disk / f"roll {moment}", joined("append and snapshot", moment, killed=True)))


@pytest.mark.parametrize(
    "call",
    [
        "os.truncate(target, 0)",
        "os.symlink(staged, target)",
        "fcntl.lockf(1, 2)",
        "target.touch()",
        "__import__('os').mkdir(target.parent / 'behind')",
        "__import__('builtins').open(target, 'wb').close()",
    ],
)
def test_change_that_is_not_recorded_ends_the_run(disk: Path, call: str) -> None:
    behind = Mutation("behind", "_link_new", "os.link(staged, target)", call)

    with applied(behind), pytest.raises(UnknownCallError):
        record(disk / "run", lambda session: session.user("user").store.create("x", b"x") and None)


def disks(volume: Volume) -> set[frozenset[tuple[str, bytes | None]]]:
    return {state.key for state in volume.states(random.Random(0))}


def test_model_loses_any_of_the_changes_that_were_not_synced_and_none_that_were() -> None:
    volume = Volume(".own")
    for inode, name in ((1, "kept"), (2, "one"), (3, "two")):
        volume.add(inode, folder=False)
        volume.apply(Step("create", (Entry(ROOT, name, inode),)))
        if name == "kept":
            volume.apply(Step("sync", (Sync(ROOT),)))

    assert disks(volume) == {
        frozenset({("kept", b""), *others})
        for others in ([], [("one", b"")], [("two", b"")], [("one", b""), ("two", b"")])
    }


def test_model_tears_a_file_until_it_is_synced() -> None:
    volume = Volume(".own")
    volume.add(1, folder=False)
    volume.apply(Step("create", (Entry(ROOT, "file", 1),)))
    volume.apply(Step("sync", (Sync(ROOT),)))

    volume.apply(Step("write", (Write(1, 0, b"full"),)))
    torn = disks(volume)
    volume.apply(Step("sync", (Sync(1),)))

    assert torn == {frozenset({("file", data)}) for data in (b"", b"fu", b"ful", b"\0\0\0\0", b"full")}
    assert disks(volume) == {frozenset({("file", b"full")})}


def test_model_keeps_a_renamed_file_under_at_least_one_name() -> None:
    volume = Volume(".own")
    for inode, name in ((1, "old"), (2, "new")):
        volume.add(inode, folder=False)
        volume.apply(Step("create", (Entry(ROOT, name, inode),)))
        volume.apply(Step("write", (Write(inode, 0, name.encode()), Sync(inode), Sync(ROOT))))

    volume.apply(Step("rename", (Entry(ROOT, "old", 2), Entry(ROOT, "new", None, moved_to=(ROOT, "old")))))

    assert disks(volume) == {
        frozenset({("old", b"old"), ("new", b"new")}),
        frozenset({("old", b"new"), ("new", b"new")}),
        frozenset({("old", b"new")}),
    }
