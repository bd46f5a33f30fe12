"""A store that fails as a network, a server and a disk do, drawn from the simulation's seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.model.manifest import Manifest
from wal3_core.storage.object_store import (
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
    from collections.abc import Callable, Iterator

    from tests.faults.simulator import SimProcess, Simulation
    from wal3_core.storage.memory import MemoryStore

MUTATION_FAULTS = ("before", "after", "late", "conflict", "denied", "slow")
READ_FAULTS = ("unavailable", "truncated", "flipped", "slow")


@dataclass
class World:
    """What all processes share: the objects, the faults that may happen, and what was seen."""

    simulation: Simulation
    objects: MemoryStore
    rates: dict[str, float] = field(default_factory=dict)
    fired: Counter[str] = field(default_factory=Counter)
    manifests: dict[str, Manifest] = field(default_factory=dict)

    @classmethod
    def swarm(cls, simulation: Simulation, objects: MemoryStore) -> World:
        """Draw which kinds of fault this seed has at all, and how often."""
        chosen = simulation.random
        rates = {
            fault: chosen.choice((0.01, 0.05, 0.2))
            for fault in (*MUTATION_FAULTS, *(f"read-{name}" for name in READ_FAULTS))
            if chosen.random() < 0.4
        }
        return cls(simulation, objects, rates)

    def heal(self) -> None:
        self.rates = {}

    def draw(self, faults: tuple[str, ...]) -> str | None:
        for fault in faults:
            if fault in self.rates and self.simulation.random.random() < self.rates[fault]:
                self.fired[fault] += 1
                self.simulation.note(fault)
                return fault
        return None

    def saw_manifest(self, path: str, data: bytes) -> None:
        """Check what every manifest version must keep, as it is installed."""
        manifest = Manifest.from_bytes(data)
        before = self.manifests.get(path)
        self.manifests[path] = manifest
        if before is not None:
            assert manifest.generation == before.generation + 1, "INV-5"
            assert manifest.next.seq_no >= before.next.seq_no, "the log went backwards"
            assert manifest.next.position >= before.next.position, "INV-2"
            added = manifest.next.position.offset - before.next.position.offset
            assert manifest.num_records == before.num_records + added, "records were lost"
            assert manifest.fence >= before.fence, "INV-7"


class SimStore:
    """The world as one process sees it."""

    url = "sim:"

    def __init__(self, world: World, process: SimProcess) -> None:
        self._world = world
        self._process = process

    def _travel(self, *, slow: bool = False) -> None:
        simulation = self._world.simulation
        simulation.pause(simulation.random.random() * (5.0 if slow else 0.02))

    def _put(self, path: str, data: Buffer, apply: Callable[[], PutOutcome]) -> PutOutcome:
        world, kept = self._world, bytes(data)
        fault = world.draw(MUTATION_FAULTS)
        self._travel(slow=fault == "slow")

        def land() -> PutOutcome:
            outcome = apply()
            world.simulation.note(f"put {path} {type(outcome).__name__}")
            if isinstance(outcome, Done) and path.endswith("MANIFEST.json"):
                world.saw_manifest(path, kept)
            return outcome

        match fault:
            case "before":
                return Unknown("reset by peer")
            case "conflict":
                return Refused()
            case "denied":
                raise StoreDeniedError(f"{path}: 403")
            case "late":
                world.simulation.spawn(_network(self._process), "network", lambda: self._late(land))
                return Unknown("timed out")
        outcome = land()
        self._travel()
        return Unknown("reply dropped") if fault == "after" else outcome

    def _late(self, land: Callable[[], PutOutcome]) -> None:
        self._world.simulation.pause(self._world.simulation.random.random() * 30)
        land()

    def create(self, path: str, data: Buffer) -> PutOutcome:
        kept = bytes(data)
        return self._put(path, kept, lambda: self._world.objects.create(path, kept))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        kept = bytes(data)
        return self._put(path, kept, lambda: self._world.objects.replace(path, kept, etag))

    def _ask(self, path: str) -> str | None:
        fault = self._world.draw(tuple(f"read-{name}" for name in READ_FAULTS))
        self._travel(slow=fault == "read-slow")
        if fault == "read-unavailable":
            raise UnavailableError(f"{path}: no answer")
        return fault

    def _spoil(self, fault: str | None, data: bytes) -> bytes:
        if fault == "read-truncated":
            return data[: self._world.simulation.random.randrange(len(data) + 1)]
        if fault == "read-flipped" and data:
            at = self._world.simulation.random.randrange(len(data) * 8)
            return bytes([*data[: at // 8], data[at // 8] ^ 1 << at % 8, *data[at // 8 + 1 :]])
        return data

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        fault = self._ask(path)
        data = self._world.objects.read(path, start=start, length=length)
        self._travel()
        return None if data is None else self._spoil(fault, data)

    def get(self, path: str, *, if_none_match: Etag | None = None) -> Versioned | NotModified | None:
        fault = self._ask(path)
        found = self._world.objects.get(path, if_none_match=if_none_match)
        self._travel()
        return Versioned(self._spoil(fault, found.data), found.etag) if isinstance(found, Versioned) else found

    def head(self, path: str) -> ObjectMeta | None:
        self._ask(path)
        return self._world.objects.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        self._ask(folder)
        return iter(list(self._world.objects.list_objects(folder, start_after=start_after)))

    def list_folders(self, folder: str) -> list[str]:
        self._ask(folder)
        return self._world.objects.list_folders(folder)

    def delete(self, path: str) -> None:
        self._ask(path)
        self._world.objects.delete(path)


def _network(process: SimProcess) -> SimProcess:
    """What is under way on the network outlives the process that sent it."""
    from tests.faults.simulator import SimProcess  # noqa: PLC0415 - needed at run time only here

    return SimProcess(process.simulation, "network")
