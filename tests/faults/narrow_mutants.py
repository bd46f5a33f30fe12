"""Defects with a narrow window, which a world of `mutants.py` seldom opens: each has a place that finds it at once."""

from __future__ import annotations

from tests.faults.marking_mutants import MARKING, marking_mutant
from tests.faults.mutants import CLAIM, COMMIT, COPYING, DESTROYING, MANIFESTS, PRUNER, SNAPSHOTTER
from tests.mutations import Mutation

# Each with the scenario of crashes.py that finds it: a window of milliseconds, which a slow request opens wide.
CRASH_MUTANTS = (
    (
        "collect while creating a pin",
        Mutation(
            "a pin is not compared with the manifest after it is written",
            "wal3_core.storage.documents.pin_store:_still_whole",
            "return now.first.seq_no <= pinned.first.seq_no and now.pointers[:count] == pinned.pointers",
            "return count >= 0 or now == pinned",
        ),
    ),
    (
        "copy while collecting",
        Mutation(
            "a copy's source is not pinned",
            COPYING + "_begin",
            "        try:\n",
            "        pins.let_go(name)\n        try:\n",
        ),
    ),
    (
        "read while compacting and collecting",
        Mutation(
            "a read whose snapshot was replaced begins again",
            "wal3_core.log.read.walk:Reloading.steps",
            "start, reloads = pointer.limit.offset, 0",
            "reloads = 0",
        ),
    ),
    (
        "read while compacting and collecting",
        Mutation(
            "a read whose snapshot was replaced leaves out a record",
            "wal3_core.log.read.walk:Reloading.steps",
            "missing, manifest = error.path, self.source.manifest()",
            "missing, manifest, start = error.path, self.source.manifest(), (start or 1) + 1",
        ),
    ),
    (
        "destroy while creating a pin",
        Mutation(
            "pins made while the log is destroyed are ignored",
            DESTROYING + "_refuse_pinned",
            "        if pins:\n",
            "        if not self._log_id:\n",
        ),
    ),
    ("roll up patiently while appending", marking_mutant("an undecided marker is dropped")),
    ("roll up while appending", marking_mutant("the fence is not moved before an overdue marker is dropped")),
    ("roll up while appending", marking_mutant("a marker that waited long is dropped without a fence")),
)

# In the order of the cases of test_narrow_windows.py: a window of one request takes a world hundreds of seeds.
NARROW_MUTANTS = (
    Mutation(
        "an outcome is reported although the CAS may still be applied",
        "wal3_core.log.write.commit_results:OutcomeLookup._ask",
        "if not isinstance(self._manifests.install(found.manifest, found), Installed):",
        "if verdict is None:",
    ),
    Mutation(
        "a destroy lists the earlier lives after the name became vacant",
        DESTROYING + "run",
        "        for _ in range(_ROUNDS_MAX):\n",
        "        lives = self._manifests.lives()\n        for _ in range(_ROUNDS_MAX):\n",
    ),
    Mutation(
        "a copy lists the earlier lives after it claimed the name",
        CLAIM + "CopyTarget._claim",
        "[life for life in lives if life != log_id]",
        "[life for life in self._names.lives() if life != log_id]",
    ),
    Mutation(
        "a copy writes cursors without checking its claim",
        CLAIM + "Claim._write",
        "        self.check_ours()\n        if documents",
        "        if documents",
    ),
    Mutation(
        "a copy uses another copy's pin",
        "wal3_core.log.maintain.copy.target:CopyPins.make",
        "            return name, self._pins.create(",
        "            return name, next(iter(self._pins.list().values()), None) or self._pins.create(",
    ),
    Mutation(
        "a copy that was taken over deletes the pin of the call that took it over",
        CLAIM + "CopyTarget.forgets",
        "standing.pin == pin:",
        "standing.pin == since:",
    ),
    Mutation(
        "the fence is not compared before a commit",
        COMMIT + "judge",
        "if manifest.fence != term.fence:",
        "if manifest.fence < term.fence:",
    ),
    Mutation(
        "the fence is not compared before a snapshot is used",
        SNAPSHOTTER + "applied",
        "if ready.fence != manifest.fence:",
        "if ready.fence > manifest.fence:",
    ),
    Mutation(
        "a garbage document has its mark before it is pruned",
        PRUNER + "announce",
        "        path = garbage.path\n",
        "        path = garbage.path\n        self._documents.mark(path)\n",
    ),
    Mutation(
        "the start of a read is determined again with every manifest",
        "wal3_core.log.read.scan:begun",
        "            return manifest.first.position.offset\n",
        "            return None\n",
    ),
    Mutation(
        "the start of a follower is determined again with every poll",
        "wal3_core.log.read.following:Following.look",
        "        self.start = begun(manifest, self.start)\n",
        "        begun(manifest, self.start)\n",
    ),
    Mutation(
        "a policy is changed without checking the announcement",
        "wal3_core.storage.documents.policy_store:PolicyStore._withdraw_announced",
        "self._manifests.change(base, withdrawn)",
        "assert withdrawn",
    ),
    Mutation(
        "a delete removes an object that was created after it",
        "wal3_core.storage.documents.named_store:NamedStore.delete",
        "            if isinstance(outcome, Unknown):\n",
        "            if isinstance(outcome, Unknown) and not generation:\n",
    ),
    Mutation(
        "a refused change is taken for one that was never done",
        "wal3_core.storage.documents.document_store:DocumentStore.swap",
        "return Refused() if others else Unknown(cause)",
        "return Refused() if others or isinstance(outcome, Refused) else Unknown(cause)",
    ),
    Mutation(
        "any process can create a log at a claimed name",
        MANIFESTS + "refuse_taken",
        "vacancy.kind is not VacancyKind.DESTROYED",
        "vacancy.kind is VacancyKind.COPYING",
    ),
    Mutation(
        "a successor's name is checked but not claimed",
        "wal3_core.log.maintain.sealer:_Keeping.keep",
        "if self._names.swap(self._vacancy(VacancyKind.FOLLOWING), seen) is not None:",
        "if self._names is not None:",
    ),
    Mutation(
        "the end of the writer's own commit is taken for the end of the log",
        "wal3_core.log.write.in_flight:WritePosition.confirm",
        " and self._place == base.manifest.next:",
        ":",
    ),
    Mutation(
        "a created log is taken for another process's when the answer was lost",
        MANIFESTS + "begin",
        "        if isinstance(outcome, Unknown):\n",
        "        if isinstance(outcome, Unknown) and seen is not None:\n",
    ),
    Mutation(
        "a policy change whose answer was lost is made again",
        "wal3_core.storage.documents.policy_store:PolicyStore.change",
        "            if isinstance(saved, Unknown):\n",
        "            if isinstance(saved, Unknown) and seen is None:\n",
    ),
    Mutation(
        "what a resumed writer reports as durable is not marked",
        MARKING + "ensure",
        "        for flight in flights:\n",
        "        for flight in () if self._marks is None else list(flights)[:0]:\n",
    ),
    marking_mutant("handing out drops what was not committed yet"),
    marking_mutant("the end of the log is read before the fence is moved"),
    Mutation(
        "a log that is sealed to be destroyed ends for its followers",
        "wal3_core.log.read.following:Following.look",
        "        if manifest.doomed:\n",
        "        if manifest.doomed and self._history is None:\n",
    ),
    Mutation(
        "a destroy that was taken back relies on pins that it listed before",
        DESTROYING + "_vacate",
        "                unpinned = also_pinned\n",
        "                unpinned = unpinned or also_pinned\n",
    ),
    Mutation(
        "a roll that fails fails a staged append",
        SNAPSHOTTER + "rolled_now",
        "            failed(error)\n            break\n",
        "            raise\n",
    ),
    Mutation(
        "an append is forgotten that may still be committed",
        "wal3_core.log.write.staged.once:fenced",
        "move_fence(found) if found.fence == fence else None",
        "None",
    ),
    Mutation(
        "a writer's cursor counts as a consumer's",
        "wal3_core.log.collect.planner:is_consumed",
        "not all(name.startswith(WRITER_CURSOR) for name in cursors)",
        "bool(cursors)",
    ),
    Mutation(
        "a commit does not look whose log it is by now",
        "wal3_core.log.write.commit:judge",
        "if manifest.is_of(view) else",
        "if manifest is not None else",
    ),
)
