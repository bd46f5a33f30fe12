"""The model of what a POSIX file system may hold after a power loss.

The system guarantees a file's bytes as of its last fsync, and a folder's entries as of its own last
fsync. Each later change of an entry may be lost or kept, independently of the others; a file's bytes
are old, new, cut short or zeros. A rename is atomic: its file is never without a name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

ROOT = 0
STATES_MAX = 64
SAMPLES = 24
# Files by path with their bytes, folders with None.
Tree = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder is set to ``inode``, or removed; None with ``moved_to`` is half of a rename."""

    folder: int
    name: str
    inode: int | None
    moved_to: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """A file's bytes are changed from ``at`` on; with ``size`` it is first truncated to that."""

    inode: int
    at: int
    data: bytes
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """A file or a folder was synced."""

    inode: int


@dataclass(frozen=True, slots=True)
class Lock:
    """No change of the disk, but a step after which others may act."""


@dataclass(frozen=True, slots=True)
class Step:
    """One system call; a rename has two entries."""

    call: str
    changes: tuple[Entry | Write | Sync | Lock, ...]


@dataclass(frozen=True, slots=True)
class State:
    """One possible disk: the store's objects and folders, and the content of the store's own folder."""

    objects: Tree
    own: Tree

    @property
    def key(self) -> frozenset[tuple[str, bytes | None]]:
        """Equal for disks with the same objects; the store's own folder is left to chance."""
        return frozenset(self.objects.items())


@dataclass
class Volume:
    """A disk in operation, and which part of it would survive a power loss for certain."""

    own_folder: str
    live: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    certain: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    pending: list[Entry] = field(default_factory=list)
    files: dict[int, bytes] = field(default_factory=dict)
    # The possible contents of each file that is not synced; the last is its current content.
    unsynced: dict[int, list[bytes]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)

    def find(self, path: str) -> int | None:
        """Return a path's current inode."""
        inode: int | None = ROOT
        for part in path.split("/") if path else ():
            inode = self.live.get(inode, {}).get(part) if inode is not None else None
        return inode

    def path(self, inode: int) -> str:
        """Return the current path of a file or folder."""
        if inode == ROOT:
            return "."
        for folder, entries in self.live.items():
            for name, each in entries.items():
                if each == inode:
                    return f"{self.path(folder)}/{name}".removeprefix("./")
        return f"removed inode {inode}"

    def add(self, inode: int, *, folder: bool) -> None:
        """Add a file or folder that has no name yet."""
        if folder:
            self.live[inode], self.certain[inode] = {}, {}
        else:
            self.files[inode], self.unsynced[inode] = b"", [b""]

    def apply(self, step: Step) -> None:
        """Apply a call's changes."""
        for change in step.changes:
            match change:
                case Entry():
                    self._enter(change)
                case Write():
                    self._write(change)
                case Sync(inode):
                    self._sync(inode)

    def _enter(self, entry: Entry) -> None:
        self.pending.append(entry)
        if entry.inode is None:
            del self.live[entry.folder][entry.name]
            return
        self.live[entry.folder][entry.name] = entry.inode
        if entry.inode not in self.live and entry.inode not in self.files:
            raise AssertionError(f"{entry}: expected a known inode")
        if entry.folder in self.own or entry.name == self.own_folder:
            self.own.add(entry.inode)
        else:
            self.own.discard(entry.inode)

    def _write(self, write: Write) -> None:
        before = self.files[write.inode][: write.size]
        held = before[: write.at].ljust(write.at, b"\0")
        after = held + write.data + before[write.at + len(write.data) :]
        self.files[write.inode] = after
        seen = self.unsynced.setdefault(write.inode, [before])
        torn = [after[: len(after) // 2], after[:-1], bytes(len(after)), after]
        self.unsynced[write.inode] = list(dict.fromkeys([each for each in seen if each != after] + torn))

    def _sync(self, inode: int) -> None:
        if inode in self.files:
            self.unsynced.pop(inode, None)
            return
        for entry in [each for each in self.pending if each.folder == inode]:
            if entry.moved_to is not None:
                self._persist(*entry.moved_to)
        for name in {each.name for each in self.pending if each.folder == inode}:
            self._persist(inode, name)

    def _persist(self, folder: int, name: str) -> None:
        self.pending = [each for each in self.pending if (each.folder, each.name) != (folder, name)]
        inode = self.live[folder].get(name)
        if inode is None:
            self.certain[folder].pop(name, None)
        else:
            self.certain[folder][name] = inode

    def tree(self) -> Tree:
        """Return the whole current disk."""
        return self._tree(ROOT, self.live, self.files)

    def states(self, chance: random.Random) -> Iterator[State]:
        """Yield the disks that may result from a power loss now: all if few, else a random sample and extremes."""
        axes = self._axes()
        objects = {axis: options for axis, options in axes.items() if not self._is_own(axis)}
        own = {axis: options for axis, options in axes.items() if self._is_own(axis)}
        extremes = [{axis: options[at] for axis, options in own.items()} for at in (0, -1)]
        for picks in _picks(objects, chance):
            by_chance = {axis: chance.choice(options) for axis, options in own.items()}
            yield self._state(picks | chance.choice((*extremes, by_chance)))

    def _is_own(self, axis: Axis) -> bool:
        folder, name = axis
        return folder in self.own or name == self.own_folder

    def _axes(self) -> dict[Axis, list[Value]]:
        """Return each name and each file that is uncertain, with its possible values."""
        axes: dict[Axis, list[Value]] = {}
        for entry in self.pending:
            before = self.certain[entry.folder].get(entry.name)
            options = axes.setdefault((entry.folder, entry.name), [before])
            if entry.inode not in options:
                options.append(entry.inode)
        named = {inode for entries in self.live.values() for inode in entries.values()}
        named |= {each.inode for each in self.pending if each.inode is not None}
        for inode, contents in self.unsynced.items():
            if len(contents) > 1 and inode in named:
                axes[inode, None] = list(contents)
        return axes

    def _state(self, picks: dict[Axis, Value]) -> State:
        self._keep_named(picks)
        names = {folder: dict(entries) for folder, entries in self.certain.items()}
        files = dict(self.files)
        for (inode, name), value in picks.items():
            if name is None:
                assert isinstance(value, bytes)
                files[inode] = value
            elif value is None:
                names[inode].pop(name, None)
            else:
                assert isinstance(value, int)
                names[inode][name] = value
        whole = self._tree(ROOT, names, files)
        own = {path: data for path, data in whole.items() if self.own_folder in path.split("/")}
        return State({path: data for path, data in whole.items() if path not in own}, own)

    def _keep_named(self, picks: dict[Axis, Value]) -> None:
        """Undo a rename that is only half kept: give its file the old name back."""
        for entry in self.pending:
            if entry.moved_to is None or picks[entry.folder, entry.name] is not None:
                continue
            arrival = next((each for each in self.pending if (each.folder, each.name) == entry.moved_to), None)
            if arrival is not None and picks[entry.moved_to] == self.certain[arrival.folder].get(arrival.name):
                before = [each.inode for each in self.pending if (each.folder, each.name) == (entry.folder, entry.name)]
                certain = self.certain[entry.folder].get(entry.name)
                picks[entry.folder, entry.name] = next((each for each in before if each is not None), certain)

    def _tree(self, folder: int, names: dict[int, dict[str, int]], files: dict[int, bytes]) -> Tree:
        found: Tree = {}
        for name, inode in names[folder].items():
            if inode in files:
                found[name] = files[inode]
            else:
                found[name] = None
                below = self._tree(inode, names, files)
                found.update({f"{name}/{path}": data for path, data in below.items()})
        return found


# A name in a folder, or a file's bytes.
Axis = tuple[int, str | None]
Value = int | bytes | None


def _picks(axes: dict[Axis, list[Value]], chance: random.Random) -> Iterator[dict[Axis, Value]]:
    if math.prod(len(options) for options in axes.values()) <= STATES_MAX:
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))
        return
    for at in (0, -1):
        extreme = {axis: options[at] for axis, options in axes.items()}
        yield dict(extreme)
        for axis, options in axes.items():
            for value in options:
                yield extreme | {axis: value}
    for _ in range(SAMPLES):
        yield {axis: chance.choice(options) for axis, options in axes.items()}
