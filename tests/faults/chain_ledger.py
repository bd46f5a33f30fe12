"""What the owners of cursors were promised of a log, its successors and its copies, and what must hold of each.

A course is the way of one cursor's owner through a log and those that follow it. What a course still needs must stay,
in each log of its chain, and what its owner passes must be done, or dropped by a pass of key compaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.belongings import TABLE, Fate, Operation, Thing
from tests.faults.simulator import NEVER_S, START_US
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Announcement, Manifest
from wal3_core.format.paths import MANIFEST, LogId
from wal3_core.format.policy import Policy
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from tests.faults.actors import Stage
    from tests.faults.history import Append
    from tests.faults.lives import Names
    from tests.faults.named_ledger import NamedLedger
    from tests.faults.oracle import Oracle
    from wal3_core import Message


@dataclass(eq=False)
class Course:
    """The way of a cursor's owner, from ``life`` on; ``done`` are the offsets that it has processed."""

    name: str
    life: Oracle
    wants: Callable[[Message], bool]
    # Whether it goes on in successors by itself.
    is_consumer: bool = False
    # Whether records stay until it has processed them.
    pins: bool = True
    # Where it began in the logs that it has opened itself; in others it begins where they do.
    starts: dict[Oracle, int] = field(default_factory=dict)
    # False once its cursor is about to be deleted, or it has heard that records are gone.
    living: bool = True
    done: set[int] = field(default_factory=set)
    # Those that a save which returned has recorded as done.
    saved: set[int] = field(default_factory=set)
    given: Counter[int] = field(default_factory=Counter)

    def start(self, life: Oracle) -> int:
        """Return the first offset of a log that its owner is to get."""
        return self.starts.get(life, life.begins)

    def needs(self, life: Oracle, offset: int, record: Message) -> bool:
        """Whether its owner has to get a record."""
        return offset >= self.start(life) and offset not in self.done and self.wants(record)


@dataclass
class Held:
    """What a life held when its manifest was last changed."""

    first: int
    dropped: set[int]
    pointers: Sequence[FragmentPointer]
    announced: Announcement | None
    # The cursors that it had when the collection was announced.
    guarding: set[str]


@dataclass
class ChainLedger:
    """All courses, and the appends of all writers, in all logs of a story."""

    stage: Stage
    named: NamedLedger
    courses: list[Course] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    # Lives in which a consumer that was opened as they began may have created its cursor: it begins there.
    unseen: set[tuple[str, Oracle]] = field(default_factory=set)
    # Names whose cursor may be deleted at any moment.
    retiring: set[str] = field(default_factory=set)
    _held: dict[LogId, Held] = field(default_factory=dict)
    # Of a sealed log, or the claim of a copy: the first policy of the source that the log may have which begins.
    _oldest_policy: dict[LogId, int] = field(default_factory=dict)
    # Of a sealed log: the cursors that it had when it was sealed.
    _sealed_cursors: dict[LogId, set[str]] = field(default_factory=dict)

    @property
    def names(self) -> Names:
        """All names in the store, and all lives that any of them had."""
        return self.stage.world.names

    # ------------------------------------------------------------------ chains

    def successors(self, life: Oracle) -> Iterator[Oracle]:
        """Go through a life and those that follow it."""
        following: Oracle | None = life
        while following is not None:
            yield following
            found = [each for each in self.names.lives.values() if each.origin is following and not each.is_copy]
            following = found[-1] if found else None

    def covers(self, course: Course, life: Oracle) -> bool:
        """Whether a life is the one where a course begins, or follows it."""
        while life is not course.life and life.origin is not None and not life.is_copy:
            life = life.origin
        return life is course.life

    def record(self, life: Oracle, offset: int) -> Message:
        """Return a record as a life, or one before it, held it."""
        while offset < life.begins and life.origin is not None:
            life = life.origin
        return life.records[offset - 1]

    def history(self, life: Oracle) -> list[Message]:
        """Return all records of a life and of those before it."""
        if life.origin is None:
            return life.records
        return self.history(life.origin)[: life.begins - 1] + life.records[life.begins - 1 :]

    # ------------------------------------------------------------------ courses

    def has(self, name: str, life: Oracle) -> bool:
        """Whether a life has a cursor now."""
        return isinstance(life.cursors[name].landed[-1], Cursor)

    def living(self, name: str, life: Oracle) -> Course | None:
        """Return the course of a cursor on which its owner relies."""
        mine = (each for each in self.courses if each.living and each.name == name and self.covers(each, life))
        return next(mine, None)

    def opened(
        self, name: str, life: Oracle, wants: Callable[[Message], bool], *, had: bool, pins: bool = True
    ) -> Course | None:
        """Return the course of a cursor that its owner has just opened, or created unless it ``had`` it.

        None for one that may be deleted now.
        """
        version = life.cursors[name].landed[-1]
        if name in self.retiring or not isinstance(version, Cursor) or life.over_s <= self.stage.simulation.now_s:
            return None
        course = self.living(name, life)
        if course is None:
            course = Course(name, life, wants, name.startswith("c"), pins)
            # A restored log's cursor says what was done ahead of it before.
            known = (offset for each in self.courses if each.name == name for offset in each.done)
            course.done.update(offset for offset in known if offset < version.extension.limit)
            self.courses.append(course)
            had = False
            self._check_late(name, life)
        if not had and life not in course.starts:
            course.starts[life] = version.position.offset
        return course

    def _check_late(self, name: str, life: Oracle) -> None:
        """A consumer that begins in a sealed log has a cursor in its successors, unless they have lost records."""
        for each in self.successors(life):
            assert each.manifest is not None
            if each.manifest.first_kept.position.offset > each.begins:
                return
            assert self.has(name, each), f"{each.log} has no cursor {name}, and {life.log} has"

    def retire(self, name: str) -> None:
        """Note that a cursor is about to be deleted, wherever it is."""
        self.retiring.add(name)
        for course in self.courses:
            course.living = course.living and course.name != name

    def passed(self, course: Course, life: Oracle, begin: int, limit: int) -> None:
        """Check that nothing in a range of a life was needed that its owner has passed."""
        if not course.living:
            return
        needed = [offset for offset in range(begin, limit) if self._skipped(course, life, offset)]
        if needed:
            self.stage.fail(f"{course.name} in {life.log}: skipped in silence: {needed}, given from {limit} on")

    def _skipped(self, course: Course, life: Oracle, offset: int) -> bool:
        return offset not in life.dropped and course.needs(life, offset, self.record(life, offset))

    def left(self, course: Course, life: Oracle) -> list[int]:
        """Return what a log has that its owner still needs."""
        limit = len(life.records) + 1
        return [offset for offset in range(course.start(life), limit) if self._skipped(course, life, offset)]

    def is_gone(self, course: Course) -> bool:
        """Whether a record that its owner needs was collected, or a collection of it is announced."""
        for life in self.successors(course.life):
            assert life.manifest is not None
            announced = life.manifest.announced
            first = (life.manifest.first if announced is None else announced.first).position.offset
            needed = any(self._skipped(course, life, offset) for offset in range(course.start(life), first))
            if needed or life.over_s < NEVER_S:
                return True
        return False

    def moved_by_twin(self, course: Course, process: str) -> bool:
        """Whether the other process with this one's cursor has moved it last: the names of two differ at their ends."""
        versions = (life.cursors[course.name].landed[-1] for life in self.successors(course.life))
        movers = {each.writer.rpartition(" ")[0] for each in versions if isinstance(each, Cursor)}
        return any(mover.split()[0] == process.split(maxsplit=1)[0] for mover in movers - {process})

    def check_complete(self, course: Course) -> None:
        """With every fault healed, its owner has processed all that it was to get."""
        for life in self.successors(course.life):
            if life.over_s == NEVER_S:
                self.passed(course, life, course.start(life), len(life.records) + 1)

    # ------------------------------------------------------------------ changes

    def landed(self, path: str, deleted: bool) -> None:  # noqa: FBT001 - as the world calls it
        """Check a change of an object as it is made."""
        _, found, rest = path.partition("/Life=")
        if path.endswith(f"/{MANIFEST}"):
            self._changed(path.removesuffix(f"/{MANIFEST}"))
        elif found and "/cursor/" in rest and not deleted:
            self._moved(LogId(rest.partition("/")[0]), rest.partition("/cursor/")[2].removesuffix(".json"))

    def _moved(self, log_id: LogId, name: str) -> None:
        life = self.names.lives.get(log_id)
        if life is not None and life.manifest is not None:
            self._check_within(life, name)

    def _check_within(self, life: Oracle, name: str) -> None:
        assert life.manifest is not None
        version, end = life.cursors[name].landed[-1], life.manifest.next.position.offset
        beyond = isinstance(version, Cursor) and version.position.offset > end
        assert not beyond, f"{life.log}: cursor {name} lies beyond the end, {end}: {version}"

    def _changed(self, log: str) -> None:
        name = self.names[log]
        if not isinstance(name.entry, Manifest):
            if name.copying is not None:
                # The policy is read later.
                self._remember_policy(name.copying.log_id, _copied(self.names, name.copying.terms))
            return
        life, after = name.life, name.entry
        if after.seal is not None and after.log_id not in self._sealed_cursors:
            self._remember_policy(after.log_id, life)
            living = {name for name, each in life.cursors.items() if isinstance(each.landed[-1], Cursor)}
            self._sealed_cursors[after.log_id] = living
        before = self._held.get(after.log_id)
        if before is None:
            self._begun(life)
        else:
            self._check_lost(life, before, after)
        guarding = {name for name in life.cursors if self.has(name, life)}
        if before is not None and before.announced == after.announced:
            guarding = before.guarding
        self._held[after.log_id] = Held(
            after.first.position.offset, {*life.dropped}, life.held, after.announced, guarding
        )

    def _remember_policy(self, log_id: LogId, source: Oracle | None) -> None:
        if source is not None:
            self._oldest_policy[log_id] = source.passes.oldest

    def _begun(self, life: Oracle) -> None:
        """Check what a life has from the beginning."""
        for name in life.cursors:
            self._check_within(life, name)
        origin = life.origin
        if origin is None or origin.manifest is None or life.manifest is None:
            return
        if TABLE[Operation.COPY if life.is_copy else Operation.MIGRATE][Thing.POLICY].fate is Fate.KEPT:
            oldest = self._oldest_policy.get((life if life.is_copy else origin).manifest.log_id, 0)
            possible = [_terms(policy) for _, policy in origin.passes.policies[oldest:]]
            found = _terms(life.passes.policies[0][1])
            assert found in possible, f"{life.log} begins with {found}, expected one of {possible}"
        if life.is_copy:
            self._check_copied(life, origin)
        elif TABLE[Operation.MIGRATE][Thing.CONSUMER].fate is Fate.KEPT:
            self._check_followed(life, origin)

    def _check_copied(self, life: Oracle, origin: Oracle) -> None:
        """No cursor of a copy lies beyond what its owner has processed."""
        assert life.manifest is not None
        end = life.manifest.next.position.offset
        for name, cursor in life.cursors.items():
            version = cursor.landed[-1]
            course = self.living(name, origin)
            if (
                isinstance(version, Cursor)
                and course is not None
                and len([e for e in self.courses if e.name == name]) == 1
            ):
                self.passed(course, origin, course.start(origin), min(version.position.offset, end))

    def _check_followed(self, life: Oracle, origin: Oracle) -> None:
        """A successor has each cursor that the sealed log has, at its own first offset."""
        assert origin.manifest is not None
        for name in self._sealed_cursors[origin.manifest.log_id] - self.retiring:
            version = life.cursors[name].landed[-1]
            assert isinstance(version, Cursor), f"{life.log} begins without the cursor {name} of {origin.log}"
            assert version.position.offset == life.begins, f"{life.log}: {name} begins elsewhere: {version}"

    def _check_lost(self, life: Oracle, before: Held, after: Manifest) -> None:
        """Check what a collection or a pass has taken."""
        collected = range(before.first, after.first.position.offset)
        lost = [*(each for each in collected if each not in before.dropped), *(life.dropped.keys() - before.dropped)]
        if not lost:
            return
        self.stage.world.fired["records lost"] += len(lost)
        for course in self.courses:
            # Who comes after a collection was announced, hears that, at the latest when it comes to the records.
            if course.living and course.pins and course.name in before.guarding and self.covers(course, life):
                needed = [offset for offset in lost if course.needs(life, offset, self.record(life, offset))]
                assert not needed, f"{life.log}: taken, and {course.name} needs them: {needed}"
        if collected:
            gone = [each for each in before.pointers if each.limit.offset <= after.first.position.offset]
            self._check_retained(life, gone)

    def _check_retained(self, life: Oracle, gone: Iterable[FragmentPointer]) -> None:
        """No record was collected that every policy which may be in force keeps."""
        now_us = START_US + int(self.stage.simulation.now_s * US_PER_S)
        policies = [policy for _, policy in life.passes.policies[life.passes.oldest :]]
        retention_s = min(policy.retention_s or 0 for policy in policies)
        assert any(policy.collects for policy in policies), f"{life.log}: collected, and its policy forbids it"
        young = [
            record.offset
            for pointer in gone
            for record in life._records_of(pointer)
            if record.timestamp_us + retention_s * US_PER_S > now_us
        ]
        assert not (retention_s and young), f"{life.log}: younger than {retention_s} s, and collected: {young}"


def _copied(names: Names, terms: str) -> Oracle | None:
    """Return the source of a copy, by the terms of its claim."""
    return next((life for log_id, life in names.lives.items() if terms.startswith(f"log {log_id},")), None)


def _terms(policy: Policy) -> Policy:
    """Return what a policy says, without which version of whose document it is."""
    return replace(policy, log_id=Policy().log_id, generation=0, writer="")
