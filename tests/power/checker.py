"""Cuts the power after every step of a recorded run, and checks each disk that may result."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.power.process import Process
from tests.power.session import LOG, OPTIONS, Change, Session
from wal3_core import LogReader, LogWriter, scrub
from wal3_core.format.paths import MANIFEST
from wal3_core.store.backends.local import LocalStore

if TYPE_CHECKING:
    from tests.power.volume import State

MANIFEST_PATH = f"{LOG}/{MANIFEST}"


class BrokenPromiseError(AssertionError):
    """A disk that may result from a power loss breaks a promise."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a new process finds on a disk: objects by path, the log's records by offset, and its error, if any."""

    objects: dict[str, bytes]
    records: dict[int, bytes]
    trouble: str


@dataclass
class Checker:
    """Recovers each disk once; disks are laid out in ``folder``."""

    folder: Path
    seed: int = 0
    states: int = 0
    _known: dict[object, Recovered] = field(default_factory=dict)
    _disks: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def disks(self) -> int:
        """The number of different disks recovered."""
        return len(self._known)

    def check(self, session: Session) -> None:
        """Raise BrokenPromiseError for the first disk that breaks a promise."""
        for number, volume in session.recorder.replay():
            if number < session.first:
                continue
            for state in volume.states(random.Random(f"{self.seed} {number}")):
                self.states += 1
                found = self._recovered(session.folder, state)
                broken = _broken(session, number, found)
                if broken:
                    raise BrokenPromiseError(_report(session, number, state, broken))

    def _recovered(self, folder: str, state: State) -> Recovered:
        known = self._known.get((folder, state.key))
        if known is None:
            known = self._known[folder, state.key] = self._recover(folder, state)
        return known

    def _recover(self, folder: str, state: State) -> Recovered:
        root = self.folder / str(next(self._disks))
        root.mkdir(parents=True)
        for path, data in sorted({**state.objects, **state.own}.items()):
            if data is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(data)
        try:
            return _recover(LocalStore(root / folder))
        finally:
            shutil.rmtree(root)


def _recover(store: LocalStore) -> Recovered:
    objects = {meta.path: store.read(meta.path) or b"" for meta in store.list_objects("")}
    process, records = Process("survivor"), {}
    try:
        if MANIFEST_PATH in objects:
            records = _read(store, process)
            report = scrub(store, LOG, runtime=process)
            assert report.sound, f"scrub: {report.problems}"
        _append_again(store, process, records)
    except Exception as error:  # noqa: BLE001 (any error is a finding)
        return Recovered(objects, records, f"{type(error).__name__}: {error}")
    return Recovered(objects, records, "")


def _read(store: LocalStore, process: Process) -> dict[int, bytes]:
    return {record.offset: record.body or b"" for record in LogReader.open(store, LOG, runtime=process).records()}


def _append_again(store: LocalStore, process: Process, records: dict[int, bytes]) -> None:
    with LogWriter.open_or_create(store, LOG, options=OPTIONS, runtime=process) as writer:
        offset = writer.append(b"after").offset
        assert offset == len(records) + 1, f"offset {offset} after {len(records)} records"
    process.finish()
    found = _read(store, process)
    assert found == {**records, offset: b"after"}, f"after another append: {found}"


def _broken(session: Session, step: int, found: Recovered) -> str:
    """Return the promise that a disk breaks; empty when it keeps them all."""
    if found.trouble:
        return found.trouble
    return _broken_object(session, step, found) or _broken_record(session, step, found)


def _broken_object(session: Session, step: int, found: Recovered) -> str:
    begun = [change for change in session.changes if change.began <= step and not change.refused]
    for path in sorted({change.path for change in begun} | set(found.objects)):
        allowed = _allowed([change for change in begun if change.path == path], step)
        if found.objects.get(path) not in allowed:
            data = found.objects.get(path)
            return f"{path}: expected one of {[_size(each) for each in allowed]}, found {_size(data)}"
    return ""


def _allowed(changes: list[Change], step: int) -> list[bytes | None]:
    """List what an object may be: its last acknowledged content, or anything that was tried since.

    A deleted object may come back as it last was: a cursor then keeps more than it must until it is
    deleted again, and a fragment or snapshot that nothing refers to is garbage again.
    """
    certain = [change for change in changes if change.kept(step) and change.data is not None]
    last = max((change.began for change in certain), default=-1)
    newest = [change.data for change in changes if change.ended is None or change.ended > last or change.data is None]
    return newest if certain else [None, *newest]


def _broken_record(session: Session, step: int, found: Recovered) -> str:
    begun = {append.body for append in session.appends if append.began <= step}
    for append in session.appends:
        acknowledged = append.ended is not None and append.ended <= step
        if acknowledged and found.records.get(append.offset or 0) != append.body:
            return f"record {append.body!r}: acknowledged at {append.offset}, found {found.records}"
    for sight in session.sights:
        if sight.step <= step and found.records.get(sight.offset) != sight.body:
            return f"record {sight.body!r}: read earlier at {sight.offset}, found {found.records}"
    for body, count in Counter(found.records.values()).items():
        if count > 1 or body not in begun:
            return f"record {body!r}: expected at most once, and only if appended, found {found.records}"
    return ""


def _size(data: bytes | None) -> str:
    if data is None:
        return "nothing"
    return f"{len(data)} bytes{' of zeros' if data and not any(data) else ''}"


def _report(session: Session, step: int, state: State, broken: str) -> str:
    lines = [broken, f"when power is lost after step {step}:"]
    lines += [f"  {number:4d} {each.call}" for number, each in enumerate(session.recorder.steps[:step], 1)][-40:]
    lines += ["and these objects are found:", *(f"  {path} ({_size(data)})" for path, data in state.objects.items())]
    return "\n".join(lines)
