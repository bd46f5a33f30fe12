"""The successive lives of a log's name, and what must hold from one to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.faults.oracle import Oracle, Shared
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CURSOR_FOLDER, MANIFEST, PIN_FOLDER, LogId, cursor_name, life_folder, life_of
from wal3_core.format.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.store.object_store import FolderStore, ObjectStore, log_store

_LIFE = re.compile(r"(?P<log>.*?)/(?P<folder>Life=[0-9a-f]{32}/)(?P<path>.*)", re.ASCII)
_SOURCE = re.compile(r"log (?P<log_id>[0-9a-f]{32}),", re.ASCII)

Entry = Manifest | Vacancy


@dataclass
class Names:
    """All names in the store, and all lives that any of them ever had."""

    objects: ObjectStore
    shared: Shared = field(default_factory=Shared)
    lives: dict[LogId, Oracle] = field(default_factory=dict)
    of: dict[str, Name] = field(default_factory=dict)

    def __getitem__(self, log: str) -> Name:
        return self.of.setdefault(log, Name(self, log))

    def landed(self, path: str, data: bytes | None, now_s: float, who: str) -> None:
        """Check a change of an object as it is made, and by which process; ``data`` is None for a delete."""
        if path.endswith(f"/{MANIFEST}"):
            self[path.removesuffix(f"/{MANIFEST}")].entered(data, now_s)
        elif found := _LIFE.fullmatch(path):
            log_id = life_of(found["folder"])
            assert log_id is not None
            reuses = who in self.shared.copiers
            assert not (data is None and reuses) or self[found["log"]].may_clear(log_id, found["path"]), (
                f"{path} was deleted by {who}, and the log is there"
            )
            self[found["log"]].changed(log_id, found["path"], data, now_s)


@dataclass
class Name:
    """One name: the entry in its manifest's place, and its lives; ``pins_going`` calls may destroy pinned objects."""

    names: Names
    log: str
    entry: Entry | None = None
    turns: int = 0
    pins_going: int = 0
    pins_go_until_s: float = 0.0
    lives: list[Oracle] = field(default_factory=list)
    # The life that had the name, or was to have it, and since when.
    held: list[tuple[float, LogId | None]] = field(default_factory=list)
    _claims: set[LogId] = field(default_factory=set)
    _versions: set[bytes] = field(default_factory=set)
    _unborn: Oracle = field(init=False)

    def __post_init__(self) -> None:
        self._unborn = Oracle(log_store(self.names.objects, self.log), self.names.shared, self.log)

    @property
    def life(self) -> Oracle:
        """The newest life, over or not; an empty one before the first."""
        return self.lives[-1] if self.lives else self._unborn

    @property
    def copying(self) -> Vacancy | None:
        """The vacancy of a copy to this name."""
        copying = isinstance(self.entry, Vacancy) and self.entry.kind is VacancyKind.COPYING
        return self.entry if copying else None

    @property
    def _claimed(self) -> Vacancy | None:
        """The vacancy of a copy to this name, or of a successor."""
        claims = VacancyKind.COPYING, VacancyKind.FOLLOWING
        return self.entry if isinstance(self.entry, Vacancy) and self.entry.kind in claims else None

    def was_taken_since(self, since_s: float) -> bool:
        """Whether the name was a log's, or claimed by a copy, at some moment since then."""
        before = [log_id for at_s, log_id in self.held if at_s < since_s][-1:]
        return any([*before, *(log_id for at_s, log_id in self.held if at_s >= since_s)])

    def entered(self, data: bytes | None, now_s: float) -> None:
        """Check a new entry in the manifest's place against the one before it."""
        assert data is not None, f"{self.log}: the manifest was deleted"
        assert data not in self._versions, f"{self.log}: a version came back"
        self._versions.add(data)
        before, after = self.entry, manifest_or_vacancy(data, what=MANIFEST)
        assert after.generation == (0 if before is None else before.generation) + 1, "INV-5"
        self._check_turn(before, after)
        if isinstance(before, Manifest) and isinstance(after, Vacancy):
            self._end(now_s)
        self.entry = after
        if self._claimed:
            self._claims.add(after.log_id)
        taken = isinstance(after, Manifest) or after.kind is not VacancyKind.DESTROYED
        self.held.append((now_s, after.log_id if taken else None))
        if isinstance(after, Manifest):
            if not isinstance(before, Manifest):
                self._begin(after, now_s)
            self.life.installed(after, now_s)
            if not isinstance(before, Manifest):
                self._check_beginning(before, after)

    def _check_turn(self, before: Entry | None, after: Entry) -> None:
        match before, after:
            case Manifest(), Manifest():
                assert after.log_id == before.log_id, f"{self.log}: one life was written over by another"
            case Manifest(), Vacancy():
                assert after.kind is VacancyKind.DESTROYED, f"{self.log}: a copy claimed the name of a log"
                assert after.log_id == before.log_id, f"{self.log}: another life was ended"
                assert before.destroying, f"{self.log}: ended without an announcement"
                assert before.seal, f"{self.log}: ended while it was open"
            case Vacancy(kind=VacancyKind.COPYING), Manifest():
                assert after.log_id == before.log_id, f"{self.log}: a copy was finished on another's claim"
            case Vacancy(kind=VacancyKind.FOLLOWING), Manifest():
                assert before.terms == after.follows, f"{self.log}: another log was begun at a name that is kept"
            case Vacancy(kind=VacancyKind.FOLLOWING), Vacancy():
                assert after.kind is not VacancyKind.COPYING, f"{self.log}: a copy claimed a name that is kept"
            case _, Manifest():
                assert after.log_id not in self._claims, f"{self.log}: a copy was finished without a claim"

    def _begin(self, after: Manifest, now_s: float) -> None:
        assert after.log_id not in self.names.lives, f"{self.log}: an id came back"
        inside = FolderStore(log_store(self.names.objects, self.log), life_folder(after.log_id))
        life = Oracle(inside, self.names.shared, began_s=now_s, log=self.log)
        self.names.lives[after.log_id] = life
        self.lives.append(life)
        life.begin(after)
        self.names.shared.seen["second lives"] += len(self.lives) > 1

    def _check_beginning(self, before: Entry | None, after: Manifest) -> None:
        """The first content of a life comes from the log that it copies or follows."""
        life, first, limit = self.life, after.first.position.offset, after.next.position.offset
        life.num_inherited = len(life.records)
        if isinstance(before, Vacancy) and before.kind is VacancyKind.COPYING:
            named = _SOURCE.match(before.terms)
            assert named is not None
            source = self.names.lives[LogId(named["log_id"])]
            life.origin, life.is_copy = source, True
            life.with_cursors = not before.terms.endswith("cursors: none")
            for offset in range(first, limit):
                # It may hold what the source has dropped since it was pinned.
                lacks = offset in life.dropped and offset in source.dropped
                assert lacks or life.records[offset - 1] == source.records[offset - 1], "the copy holds something else"
            self.names.shared.seen["copied"] += 1
            return
        assert first == limit, "a log that is no copy begins with records"
        if after.follows:
            life.origin = self.names.lives[LogId(after.follows)]
            sealed = life.origin.manifest
            assert sealed is not None
            assert sealed.seal is not None, "a log that is not sealed was followed"
            assert after.first == sealed.next, "INV-19"

    def _end(self, now_s: float) -> None:
        pins_go = self.pins_going > 0 or self.pins_go_until_s >= now_s
        assert pins_go or not self.life.pins, f"{self.log}: destroyed with pins: {[*self.life.pins]}"
        self.life.over_s = now_s
        self.turns += 1
        self.names.shared.seen["lives ended"] += 1

    def may_clear(self, log_id: LogId, path: str) -> bool:
        """Whether a process that ends and begins logs may delete an object: not one of the current log."""
        return path.startswith(PIN_FOLDER) or not isinstance(self.entry, Manifest) or self.entry.log_id != log_id

    def changed(self, log_id: LogId, path: str, data: bytes | None, now_s: float) -> None:
        """Check a change of an object that is not a manifest."""
        life = self.names.lives.get(log_id)
        if life is None:
            assert log_id in self._claims, f"{self.log}: {path} was written for a life that never had the name"
            ours = self._claimed is not None and self._claimed.log_id == log_id
            assert data is not None or not ours, f"{path} was deleted from under the log that is being made"
        elif data is not None:
            life.landed(path, data, now_s)
        elif life.over_s > now_s:
            life.deleted(path, now_s)
        elif path.startswith(CURSOR_FOLDER):
            life.cursors[cursor_name(path)].landed.append(None)
