"""Defects with a narrow window, which a world of `mutants.py` seldom opens: each has a place that finds it at once."""

from __future__ import annotations

from tests.faults.marking_mutants import marking_mutant
from tests.mutations import Mutation

# Each with the scenario of crashes.py that finds it: a window of milliseconds, which a slow request opens wide.
CRASH_MUTANTS = (
    (
        "collect while creating a pin",
        Mutation(
            "a pin is not compared with the manifest after it is written",
            "_still_whole",
            "now.first.seq_no <= _ and _",
            "count >= 0 or now == pinned",
        ),
    ),
    (
        "copy while collecting",
        Mutation(
            "a copy's source is not pinned",
            "_Copying._begin",
            "name, pin = _1",
            "name, pin = _1\npins.let_go(name)",
        ),
    ),
    (
        "read while compacting and collecting",
        Mutation(
            "a read whose snapshot was replaced begins again", "Reloading.steps", "start, reloads = _, 0", "reloads = 0"
        ),
    ),
    (
        "read while compacting and collecting",
        Mutation(
            "a read whose snapshot was replaced leaves out a record",
            "Reloading.steps",
            "missing, manifest = _1, _2",
            "missing, manifest, start = _1, _2, (start or 1) + 1",
        ),
    ),
    (
        "destroy while creating a pin",
        Mutation(
            "pins made while the log is destroyed are ignored",
            "_Destroying._refuse_pinned",
            "if pins: ...",
            "if not self._log_id: ...",
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
        "determined",
        "not isinstance(_, Installed)",
        "verdict is None",
    ),
    Mutation(
        "a destroy lists the earlier lives after the name became vacant",
        "_Destroying.run",
        "for _1 in _2: ...",
        "lives = self._manifests.lives()\nfor _1 in _2: ...",
    ),
    Mutation(
        "a copy lists the earlier lives after it claimed the name",
        "CopyTarget._claim",
        "[_1 for _1 in lives if _2]",
        "[_1 for _1 in self.names.lives() if _2]",
    ),
    Mutation(
        "a copy writes cursors without checking its claim",
        "Claim._write",
        "self.check_ours()\nif _1: ...",
        "if _1: ...",
    ),
    Mutation(
        "a copy uses another copy's pin",
        "CopyPins.make",
        "_1.create(...)",
        "next(iter(_1.list().values()), None) or _1.create(...)",
    ),
    Mutation(
        "a copy that was taken over deletes the pin of the call that took it over",
        "CopyTarget.forgets",
        "_1.pin == pin",
        "_1.pin == since",
    ),
    Mutation(
        "the fence is not compared before a commit",
        "judge",
        "manifest.fence != term.fence",
        "manifest.fence < term.fence",
    ),
    Mutation(
        "the fence is not compared before a snapshot is used",
        "applied",
        "ready.fence != manifest.fence",
        "ready.fence > manifest.fence",
    ),
    Mutation(
        "a garbage document has its mark before it is pruned",
        "Collector.announce",
        "path = garbage.path",
        "path = garbage.path\nself._documents.hint(path)",
    ),
    Mutation(
        "the start of a read is determined again with every manifest",
        "begun",
        "return manifest.first.position.offset",
        "return None",
    ),
    Mutation(
        "the start of a follower is determined again with every poll",
        "Following.look",
        "self.start = begun(manifest, self.start)",
        "begun(manifest, self.start)",
    ),
    Mutation(
        "a policy is changed without checking the announcement",
        "PolicyStore._withdraw_announced",
        "_.change(_, withdrawn)",
        "assert withdrawn",
    ),
    Mutation(
        "a delete removes an object that was created after it",
        "NamedStore.delete",
        "isinstance(outcome, Unknown)",
        "isinstance(outcome, Unknown) and not generation",
    ),
    Mutation(
        "a refused change is taken for one that was never done",
        "DocumentStore.swap",
        "Refused() if others else _1",
        "Refused() if others or isinstance(outcome, Refused) else _1",
    ),
    Mutation(
        "any process can create a log at a claimed name",
        "ManifestStore.refuse_taken",
        "vacancy.kind is not VacancyKind.DESTROYED",
        "vacancy.kind is VacancyKind.COPYING",
    ),
    Mutation(
        "a successor's name is checked but not claimed",
        "_Keeping.keep",
        "_.swap(_, seen) is not None",
        "self._names is not None",
    ),
    Mutation(
        "the end of the writer's own commit is taken for the end of the log",
        "WritePosition.confirm",
        "_1 and self._place == _",
        "_1",
    ),
    Mutation(
        "a created log is taken for another process's when the answer was lost",
        "ManifestStore.begin",
        "isinstance(outcome, Unknown)",
        "isinstance(outcome, Unknown) and seen is not None",
    ),
    Mutation(
        "a policy change whose answer was lost is made again",
        "PolicyStore.change",
        "isinstance(saved, Unknown)",
        "isinstance(saved, Unknown) and seen is None",
    ),
    Mutation(
        "what a resumed writer reports as durable is not marked",
        "Marking.ensure",
        "for flight in flights: ...",
        "for flight in () if self._marks is None else list(flights)[:0]: ...",
    ),
    marking_mutant("handing out drops what was not committed yet"),
    marking_mutant("the end of the log is read before the fence is moved"),
    Mutation(
        "a log that is sealed to be destroyed ends for its followers",
        "Following.look",
        "manifest.doomed",
        "manifest.doomed and self._history is None",
    ),
    Mutation(
        "a destroy that was taken back relies on pins that it listed before",
        "_Destroying._vacate",
        "unpinned = also_pinned",
        "unpinned = unpinned or also_pinned",
    ),
    Mutation(
        "a roll that fails fails a staged append",
        "rolled_now",
        "failed(error)\nbreak",
        "raise",
    ),
    Mutation("an append is forgotten that may still be committed", "fenced", "_.move_fence() if _ else None", "None"),
    Mutation(
        "a writer's cursor counts as a consumer's",
        "is_consumed",
        "not all(name.startswith(WRITER_CURSOR) for name in cursors)",
        "bool(cursors)",
    ),
    Mutation("a commit does not look whose log it is by now", "judge", "manifest.is_of(_)", "manifest is not None"),
)
