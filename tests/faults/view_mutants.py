"""Defects of subscriptions and keyed consumers that worlds with them must find."""

from __future__ import annotations

from tests.mutations import Mutation

OUTSTANDING = "wal3_core.views.feed.outstanding:Outstanding."
CONSUMER = "wal3_core.views.keyed.keyed_consumer:KeyedConsumer."

SUBSCRIPTION_MUTANTS = (
    Mutation(
        "a subscription's floor is where it has read to",
        OUTSTANDING + "floor",
        "lowest = next(self._open(), None)",
        "lowest = None",
    ),
    Mutation(
        "an outstanding message counts as done above the floor",
        OUTSTANDING + "progress",
        "            start = high\n",
        "",
    ),
    Mutation(
        "what was acknowledged above the floor is not saved",
        OUTSTANDING + "progress",
        "if each[0] > floor)",
        "if each[0] > self.read_limit)",
    ),
    Mutation(
        "what another process has done is overwritten",
        OUTSTANDING + "take_over",
        "self.done_ahead = (self.done_ahead | done).between(self._floor, U64_MAX)",
        "self.done_ahead = self.done_ahead.between(self._floor, U64_MAX)",
    ),
    Mutation(
        "a message is given again after its acknowledgement",
        OUTSTANDING + "finish",
        "        self._forget(start)\n",
        "",
    ),
    Mutation(
        "what was collected before it was read is passed silently",
        "wal3_core.views.feed.feed_subscription:_Reading._pass",
        "for gap in self._outstanding.lost(limit):",
        "for gap in ():",
    ),
    Mutation(
        "a record that is no message is passed silently",
        "wal3_core.views.feed.feed_subscription:_Reading._add",
        "        if item is None:\n",
        "        if not isinstance(item, FeedMessage):\n",
    ),
    Mutation(
        "a dead letter counts as done",
        OUTSTANDING + "_open",
        "if start < self.read_limit}",
        "if start < 0}",
    ),
)
KEYED_MUTANTS = (
    Mutation(
        "a consumer's floor passes a key that is behind",
        CONSUMER + "_risen",
        "return LogPosition(min(offsets), hit.pointer.start.timestamp_us)",
        "return LogPosition(max(offsets), hit.pointer.start.timestamp_us)",
    ),
    Mutation(
        "a consumer's floor rises to the end while keys are behind",
        CONSUMER + "_risen",
        "if first is None:",
        "if True:",
    ),
    Mutation(
        "the keys that are ahead of the floor are not saved",
        CONSUMER + "save",
        "stored = _fitting(ahead)",
        "stored = ()",
    ),
    Mutation(
        "a key that is finished up to a record is finished beyond it",
        CONSUMER + "finish",
        "self._ahead[record.key] = max(self.position(record.key), record.offset + 1)",
        "self._ahead[record.key] = max(self.position(record.key), record.offset + 4)",
    ),
)

# Of what readers do, whatever the consumers.
READER_MUTANTS = (
    Mutation(
        "a feed reader's position is where it has read ahead to",
        "wal3_core.views.feed.feed_reader:FeedReader._next",
        "self._place = self._place_at(self._ready[0].offset + 1)",
        "self._place = self._following.start",
    ),
    Mutation(
        "the records that followers share begin behind the place",
        "wal3_core.views.feed.tail:Recent.records",
        "while self.pieces[at].pointer.start.offset > start:",
        "while self.pieces[at].pointer.start.offset > start + 1:",
    ),
    Mutation(
        "a scan by key that ends early continues behind its range",
        "wal3_core.views.keyed.keyed_log:KeyedScan.__next__",
        "self.next_offset = record.offset + 1",
        "self.next_offset = record.offset + 2",
    ),
)
