"""Defects of marked appends, fleets and roll-ups that the simulated worlds must find."""

from __future__ import annotations

from tests.mutations import Mutation

MARKING_MUTANTS = (
    Mutation(
        "an append is acknowledged while its marker is under way",
        "Marking.hold",
        "if flight.mark is None or _1: ...",
        "if flight.mark is not None and not flight.mark.done():\n"
        "    flight.mark = None\n"
        "if flight.mark is None or _1: ...",
    ),
    Mutation(
        "a fragment is marked after its commit, and acknowledged before",
        "Marking.hold",
        "if flight.mark is None or _1: ...",
        "if flight.mark is not None:\n"
        "    marks, marker = self._marks, self._marker(flight)\n"
        "    flight.mark = None\n"
        "    self._runtime.call_later(0.1, lambda: marks.mark(marker) and None)\n"
        "if flight.mark is None or _1: ...",
    ),
    Mutation(
        "records that take another place are not marked there",
        "Marking.begin",
        "self._marks is None",
        "self._marks is None or any(append.contentions for append in flight.appends)",
    ),
    Mutation(
        "an append whose marker failed is acknowledged",
        "Marking.error_of",
        "cause is None",
        "cause is None or flight.num_records",
    ),
    Mutation(
        "a batch of markers that failed counts as marked",
        "DirtyLog._end",
        "error is None",
        "error is None or not ends_writer(error)",
    ),
    Mutation("an undecided marker is dropped", "MarkedLog.left", "return self.rest", "return None"),
    Mutation(
        "a marker that waited long is dropped without a fence", "RollUp._fence", "marked.fenced(_)", "marked.fenced(0)"
    ),
    Mutation(
        "the fence is not moved before an overdue marker is dropped", "RollUp._fenced_next", "_1.move_fence()", "_1"
    ),
    Mutation(
        "the end of the log is read before the fence is moved",
        "RollUp._fenced_next",
        "return manifests.load().manifest.next.position.offset",
        "return base.manifest.next.position.offset",
    ),
    Mutation(
        "the logs are looked up before their markers are read",
        "RollUp.read",
        "probed = list(probe_logs(...))",
        "probed = probe_logs(...)\n"
        "early = {marker.log: log for marker, log in probed}\n"
        "marker_range, manifest = self._begin()\n"
        "folded = fold(self.markers(marker_range, manifest))\n"
        "probed = [(m, early[m.log]) for m in folded.values() if m.log in early]",
    ),
    Mutation(
        "the cursor is advanced before the markers are appended again",
        "RollUp.finish",
        "self._append(_1)\ntry: _2\nexcept CursorConflictError: ...",
        "try:\n    _2\n    self._append(_1)\nexcept CursorConflictError: ...",
    ),
    Mutation(
        "markers that stay are not appended again", "RollUp.finish", "[_1 for _2 in left]", "[_1 for _2 in left[1:]]"
    ),
    Mutation(
        "a roll-up that was overtaken moves the cursor",
        "RollUp.finish",
        "_1 != marker_range.generation",
        "_1 < marker_range.generation",
    ),
    Mutation(
        "handing out drops what was not committed yet",
        "MarkedLog.left",
        "self.rest if handled else _1",
        "None if handled else _1",
    ),
    Mutation(
        "what was not committed yet counts as decided",
        "decide",
        "None if probe.sealed else _1",
        "None if probe.next else _1",
    ),
    Mutation(
        "a log that was not handed out is not marked any more",
        "MarkedLog.left",
        "self.rest if handled else _",
        "self.rest",
    ),
    Mutation(
        "a log that another took the place of is taken for it",
        "fold",
        "key = (_1.log, _1.life)",
        "key = (_1.log, _1.log)",
    ),
    Mutation("a cursor at an offset counts it as processed", "decide", "processed >= _1", "processed + 1 >= _1"),
    Mutation(
        "a fleet closes the log used least recently, with work or not",
        "Slot.idle",
        "not self.users and not self.appends and _1",
        "not self.users and _1",
    ),
    Mutation(
        "a fleet counts more open logs than it has",
        "OpenLogs._use",
        "_1 >= self._options.logs_open_max",
        "_1 > self._options.logs_open_max",
    ),
    Mutation("a caller that waits for room in a fleet is not woken", "OpenLogs._end", "self._wake()"),
    Mutation(
        "a fleet never opens a log again that was replaced",
        "OpenLogs._end",
        "ends_writer(error)",
        "ends_writer(error) and error is None",
    ),
)


def marking_mutant(name: str) -> Mutation:
    """Return the defect of a name."""
    return next(mutant for mutant in MARKING_MUTANTS if mutant.name == name)
