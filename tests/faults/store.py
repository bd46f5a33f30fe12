"""A store that fails as a network, a server and a disk do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.lives import Names
from tests.faults.marks import Marks
from tests.faults.plans import OUTAGES, Kind, Plan, Script
from tests.faults.simulator import SimProcess, Simulation
from wal3_core import MemoryStore
from wal3_core.errors import LogError, StoreDeniedError, UnavailableError
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
)

if TYPE_CHECKING:
    from random import Random

    from tests.faults.oracle import Oracle, Shared

LOG = "a"
LATE_S_MAX = 30.0
OUTAGE_S_MAX = 15.0
STALE_S_MAX = 20.0
CONFLICTS = frozenset({"conflict", "conflict-after", "conflict-late"})
# Listings that safety rests on are as fresh as the store promises; those of data folders may be stale.
STALE_FOLDERS = re.compile(r".*/Life=[0-9a-f]{32}/(log|snapshot)/", re.ASCII)


@dataclass
class World:
    """The state that all processes share: the objects, the plan of faults, and what was seen."""

    simulation: Simulation
    plan: Plan = field(default_factory=Script)
    fired: Counter[str] = field(default_factory=Counter)
    fired_at: dict[int, str] = field(default_factory=dict)
    kinds: list[Kind] = field(default_factory=list)
    outages: dict[str, float] = field(default_factory=dict)
    # How long a PUT below a folder may take, where that is more than usual.
    slow_s: dict[str, float] = field(default_factory=dict)
    objects: MemoryStore = field(default=None)
    names: Names = field(init=False)
    marks: Marks = field(init=False)
    network: SimProcess = field(init=False)
    # Checks of a story's own, after each change of an object: its path, and whether it was deleted.
    watching: list[Callable[[str, bool], None]] = field(default_factory=list)
    _changes: list[tuple[float, str, ObjectMeta | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Garbage waits by the store's clock, so that clock runs right.
        self.network = SimProcess(self.simulation, "network", steady=True)
        self.objects = self.objects or MemoryStore(self.network)
        self.names = Names(self.objects)
        self.marks = Marks(self.names)

    @property
    def oracle(self) -> Oracle:
        """The observer of the story's log: the newest life of its name."""
        return self.names[LOG].life

    @property
    def shared(self) -> Shared:
        """The state shared by all logs."""
        return self.names.shared

    @property
    def calls(self) -> int:
        """The number of store calls."""
        return len(self.kinds)

    def begin(self, plan: Plan) -> None:
        """Count calls from here on, and apply the plan to them."""
        self.plan, self.kinds = plan, []

    def heal(self) -> None:
        self.plan, self.outages, self.slow_s = Script(), {}, {}

    def draw(self, kind: Kind, path: str) -> Call:
        """Number a store call, and decide what happens to it."""
        index = len(self.kinds)
        self.kinds.append(kind)
        dice = self.simulation.dice(index)
        fault = self.plan.fault(index, kind, dice)
        self.simulation.note(f"{index} {kind} {path} {fault}")
        if fault is not None:
            self.fired[fault] += 1
            self.fired_at[index] = fault
            if fault in OUTAGES:
                self.outages[fault] = self.simulation.now_s + dice.random() * OUTAGE_S_MAX
        return Call(path, fault, dice)

    def lasts(self, outage: str) -> bool:
        return self.outages.get(outage, -1.0) >= self.simulation.now_s

    def landed(self, path: str, data: bytes | None, who: str) -> None:
        """Check a change of the objects as it is made, and by which process; ``data`` is None for a delete."""
        self.simulation.note(f"landed {path} {None if data is None else len(data)}")
        self._show(path, data, who)
        self._changes.append((self.simulation.now_s, path, self.objects.head(path)))

    def _show(self, path: str, data: bytes | None, who: str) -> None:
        try:
            self.names.landed(path, data, self.simulation.now_s, who)
            self.marks.landed(path, self.simulation.now_s, who)
            for watch in self.watching:
                watch(path, data is None)
        except (AssertionError, LogError) as error:
            self.simulation.failure = error
            raise

    def listed(self, folder: str, seconds_ago: float) -> list[ObjectMeta]:
        """List a folder as it was some seconds ago."""
        asked_s = self.simulation.now_s - seconds_ago
        found = {path: meta for at_s, path, meta in self._changes if path.startswith(folder) and at_s <= asked_s}
        return sorted((meta for meta in found.values() if meta is not None), key=lambda meta: meta.path)


@dataclass(frozen=True, slots=True)
class Call:
    """One store call: what happens to it, and its own randomness."""

    path: str
    fault: str | None
    dice: Random


@dataclass
class SimStore:
    """The world as one process sees it.

    ``ambiguous`` counts PUTs that were neither done nor refused for their condition, ``troubles`` calls that met any
    fault, ``unread`` those of reads after a PUT was refused: the refusal cannot be checked.
    """

    world: World
    process: SimProcess
    url: str = "sim:"
    ambiguous: int = 0
    troubles: int = 0
    unread: int = 0
    refused: bool = False
    sent: dict[str, list[bytes]] = field(default_factory=dict)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        kept = bytes(data)
        return self._put(path, kept, lambda: self.world.objects.create(path, kept))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        kept = bytes(data)
        return self._put(path, kept, lambda: self.world.objects.replace(path, kept, etag))

    def _put(self, path: str, data: bytes, apply: Callable[[], PutOutcome]) -> PutOutcome:
        self.sent.setdefault(path, []).append(data)

        def land() -> PutOutcome:
            outcome = apply()
            if isinstance(outcome, Done):
                self.world.landed(path, data, self.process.name)
            return outcome

        call = self._draw("put", path)
        outcome = self._send(call, land)
        # A refusal without a cause is as good as none.
        self.ambiguous += isinstance(outcome, Unknown) or call.fault in CONFLICTS
        self.refused = self.refused or isinstance(outcome, Refused)
        return outcome

    def _send(self, call: Call, land: Callable[[], PutOutcome]) -> PutOutcome:
        self._crash(call, "crash-before")
        self._travel(5.0 if call.fault == "slow" else self.world.slow_s.get(call.path.partition("/")[0], 0.02))
        if self._meets("denied") or self._meets("full"):
            raise StoreDeniedError(f"{call.path}: expected access and space, found neither")
        match call.fault:
            case _ if self._meets("burst"):
                return Unknown("503")
            case "before":
                return Unknown("reset by peer")
            case "conflict":
                return Refused()
            case "late" | "conflict-late" | "crash-late":
                self._later(call, land)
                self._crash(call, "crash-late")
                return Refused() if call.fault in CONFLICTS else Unknown("timed out")
        outcome = land()
        self._crash(call, "crash-after")
        self._travel()
        if call.fault in CONFLICTS:
            return Refused()
        return Unknown("reply dropped") if call.fault == "after" else outcome

    def _draw(self, kind: Kind, path: str) -> Call:
        call = self.world.draw(kind, path)
        self.troubles += call.fault is not None
        self.unread += self.refused and kind != "put" and call.fault is not None
        return call

    def _meets(self, outage: str) -> bool:
        met = self.world.lasts(outage)
        self.troubles += met
        self.unread += self.refused and met
        return met

    def _crash(self, call: Call, fault: str) -> None:
        if call.fault == fault:
            self.world.simulation.kill(self.process)

    def _later(self, call: Call, land: Callable[[], object]) -> None:
        """Let the network apply a request, whatever happens to the process that sent it."""
        delay_s = call.dice.random() * LATE_S_MAX

        def arrive() -> None:
            self.world.simulation.pause(delay_s)
            land()

        self.world.simulation.spawn(self.world.network, "network", arrive)

    def _travel(self, seconds_max: float = 0.02) -> None:
        simulation = self.world.simulation
        if simulation.in_task:
            simulation.pause(simulation.random.random() * seconds_max)

    def _ask(self, kind: Kind, path: str) -> Call:
        call = self._draw(kind, path)
        self._crash(call, "crash-before")
        self._travel(5.0 if call.fault == "read-slow" else 0.02)
        if self._meets("denied"):
            raise StoreDeniedError(f"{path}: expected access, found 403")
        if self._meets("burst") or call.fault in {"read-unavailable", "list-unavailable", "delete-before"}:
            raise UnavailableError(f"{path}: expected an answer, found none")
        return call

    def _spoil(self, call: Call, data: bytes) -> bytes:
        if call.fault == "read-truncated":
            return data[: call.dice.randrange(len(data) + 1)]
        if call.fault == "read-flipped" and data:
            at = call.dice.randrange(len(data) * 8)
            return bytes([*data[: at // 8], data[at // 8] ^ 1 << at % 8, *data[at // 8 + 1 :]])
        return data

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        call = self._ask("read", path)
        data = self.world.objects.read(path, start=start, length=length)
        self._travel()
        return None if data is None else self._spoil(call, data)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        call = self._ask("read", path)
        found = self.world.objects.get(path, if_none_match=if_none_match, length_max=length_max)
        self._travel()
        return Versioned(self._spoil(call, found.data), found.etag) if isinstance(found, Versioned) else found

    def head(self, path: str) -> ObjectMeta | None:
        self._ask("read", path)
        return self.world.objects.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        call = self._ask("list", folder)
        if call.fault == "list-stale" and STALE_FOLDERS.match(folder):
            found = self.world.listed(folder, call.dice.random() * STALE_S_MAX)
        else:
            found = list(self.world.objects.list_objects(folder, start_after=start_after))
        found = [meta for meta in found if meta.path > start_after]
        failing_at = call.dice.randrange(len(found) + 1) if call.fault == "list-partial" else -1
        for at, meta in enumerate(found):
            if at == failing_at:
                break
            yield meta
        if failing_at >= 0:
            raise UnavailableError(f"{folder}: expected another page, found none")

    def list_folders(self, folder: str) -> list[str]:
        self._ask("list", folder)
        return self.world.objects.list_folders(folder)

    def delete(self, path: str) -> None:
        call = self._ask("delete", path)

        def land() -> None:
            if self.world.objects.head(path) is not None:
                self.world.objects.delete(path)
                self.world.landed(path, None, self.process.name)

        if call.fault in {"delete-late", "crash-late"}:
            self._later(call, land)
            self._crash(call, "crash-late")
            raise UnavailableError(f"{path}: expected an answer, found none")
        land()
        self._crash(call, "crash-after")
        if call.fault == "delete-after":
            raise UnavailableError(f"{path}: expected an answer, found none")
