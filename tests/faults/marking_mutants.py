"""Defects of marked appends, fleets and roll-ups that the simulated worlds must find."""

from __future__ import annotations

from tests.mutations import Mutation

MARKING = "wal3_core.log.write.marking:Marking."
DIRTY_LOG = "wal3_core.fleet.dirty_log:DirtyLog."
ROLLUP = "wal3_core.fleet.rollup:RollUp."
DECIDED = "wal3_core.model.rollup:"
SLOTS = "wal3_core.fleet.slots:"

MARKING_MUTANTS = (
    Mutation(
        "an append is acknowledged while its marker is under way",
        MARKING + "hold",
        "        if flight.mark is None or flight.mark.done():\n",
        "        if flight.mark is not None and not flight.mark.done():\n"
        "            flight.mark = None\n"
        "        if flight.mark is None or flight.mark.done():\n",
    ),
    Mutation(
        "a fragment is marked after its commit, and acknowledged before",
        MARKING + "hold",
        "        if flight.mark is None or flight.mark.done():\n",
        "        if flight.mark is not None:\n"
        "            marks, marker = self._marks, self._marker(flight)\n"
        "            flight.mark = None\n"
        "            self._runtime.call_later(0.1, lambda: marks.mark(marker) and None)\n"
        "        if flight.mark is None or flight.mark.done():\n",
    ),
    Mutation(
        "records that take another place are not marked there",
        MARKING + "begin",
        "        if self._marks is None:\n",
        "        if self._marks is None or any(entry.reseals for entry in flight.entries):\n",
    ),
    Mutation(
        "an append whose marker failed is acknowledged",
        MARKING + "error_of",
        "        if cause is None:\n",
        "        if cause is None or flight.num_records:\n",
    ),
    Mutation(
        "a batch of markers that failed counts as marked",
        DIRTY_LOG + "_end",
        "            if error is None:\n",
        "            if error is None or not ends_writer(error):\n",
    ),
    Mutation(
        "an undecided marker is dropped",
        DECIDED + "MarkedLog.left",
        "                return self.rest\n",
        "                return None\n",
    ),
    Mutation(
        "a marker that waited long is dropped without a fence",
        ROLLUP + "_fence",
        "marked.fenced(self._fenced_next(marked.marker))",
        "marked.fenced(0)",
    ),
    Mutation(
        "the fence is not moved before an overdue marker is dropped",
        ROLLUP + "_fenced_next",
        "else manifest.move_fence()",
        "else manifest",
    ),
    Mutation(
        "the end of the log is read before the fence is moved",
        ROLLUP + "_fenced_next",
        "        return manifests.load().manifest.next.position.offset\n",
        "        return base.manifest.next.position.offset\n",
    ),
    Mutation(
        "the logs are looked up before their markers are read",
        ROLLUP + "read",
        "        looked = list(look_up(self._store, by_log(folded), self._options, self._runtime))\n",
        "        looked = look_up(self._store, by_log(folded), self._options, self._runtime)\n"
        "        early = {marker.log: log for marker, log in looked}\n"
        "        stretch, manifest = self._begin()\n"
        "        folded = fold(self.markers(stretch, manifest))\n"
        "        looked = [(m, early[m.log]) for m in folded.values() if m.log in early]\n",
    ),
    Mutation(
        "the cursor is advanced before the markers are appended again",
        ROLLUP + "finish",
        "        self._append([marker.reinserted() for marker in left])\n        try:\n"
        "            _advance(stores, stretch.limit, witness)\n",
        "        try:\n            _advance(stores, stretch.limit, witness)\n"
        "            self._append([marker.reinserted() for marker in left])\n",
    ),
    Mutation(
        "markers that stay are not appended again",
        ROLLUP + "finish",
        "        self._append([marker.reinserted() for marker in left])\n",
        "        self._append([marker.reinserted() for marker in left[1:]])\n",
    ),
    Mutation(
        "a roll-up that was overtaken moves the cursor",
        ROLLUP + "finish",
        "        if _generation(witness) != stretch.generation:\n",
        "        if _generation(witness) < stretch.generation:\n",
    ),
    Mutation(
        "handing out drops what was not committed yet",
        DECIDED + "MarkedLog.left",
        "return self.rest if handled else self.marker",
        "return None if handled else self.marker",
    ),
    Mutation(
        "what was not committed yet counts as decided",
        DECIDED + "decide",
        "None if looked.sealed else since(marker, looked.next)",
        "None if looked.next else since(marker, looked.next)",
    ),
    Mutation(
        "a log that was not handed out is not marked any more",
        DECIDED + "MarkedLog.left",
        "return self.rest if handled else self.marker",
        "return self.rest",
    ),
    Mutation(
        "a log that another took the place of is taken for it",
        "wal3_core.model.marker:fold",
        "        key = (marker.log, marker.life)\n",
        "        key = (marker.log, marker.log)\n",
    ),
    Mutation(
        "a cursor at an offset counts it as processed",
        DECIDED + "decide",
        "processed >= decided.limit.offset",
        "processed + 1 >= decided.limit.offset",
    ),
    Mutation(
        "a fleet closes the log used least recently, with work or not",
        SLOTS + "Slot.idle",
        "return not self.users and not self.appends and self.opened.done()",
        "return not self.users and self.opened.done()",
    ),
    Mutation(
        "a fleet counts more open logs than it has",
        SLOTS + "Slots.full",
        "len(self._slots) >= self._logs_open_max",
        "len(self._slots) > self._logs_open_max",
    ),
    Mutation(
        "a caller that waits for room in a fleet is not woken",
        "wal3_core.fleet.open_logs:OpenLogs._end",
        "        self._wake()\n",
        "",
    ),
    Mutation(
        "a fleet never opens a log again that was replaced",
        "wal3_core.fleet.open_logs:OpenLogs._end",
        "            if ends_writer(error):\n",
        "            if ends_writer(error) and error is None:\n",
    ),
)


def marking_mutant(name: str) -> Mutation:
    """Return the defect of a name."""
    return next(mutant for mutant in MARKING_MUTANTS if mutant.name == name)
