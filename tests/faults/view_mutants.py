"""Defects of subscriptions and keyed consumers that worlds with them must find."""

from __future__ import annotations

from tests.mutations import Mutation

SUBSCRIPTION_MUTANTS = (
    Mutation(
        "a subscription's floor is where it has read to",
        "Outstanding.floor",
        "lowest = next(self._open(), None)",
        "lowest = None",
    ),
    Mutation("an outstanding message counts as done above the floor", "Outstanding.progress", "start = high"),
    Mutation(
        "what was acknowledged above the floor is not saved",
        "Outstanding.progress",
        "each[0] > floor",
        "each[0] > self.read_limit",
    ),
    Mutation(
        "what another process has done is overwritten",
        "Outstanding.take_over",
        "self.done_ahead | _",
        "self.done_ahead",
    ),
    Mutation("a message is given again after its acknowledgement", "Outstanding.finish", "self._forget(...)"),
    Mutation(
        "what was collected before it was read is passed silently",
        "FeedSubscription._pass",
        "for gap in _: ...",
        "for gap in (): ...",
    ),
    Mutation(
        "a record that is no message is passed silently",
        "FeedSubscription._add",
        "item is None",
        "not isinstance(item, Delivery)",
    ),
    Mutation("a dead letter counts as done", "Outstanding._open", "_1 < self.read_limit", "_1 < 0"),
)
KEYED_MUTANTS = (
    Mutation("a consumer's floor passes a key that is behind", "KeyedConsumer._risen", "min(offsets)", "max(offsets)"),
    Mutation(
        "a consumer's floor rises to the end while keys are behind", "KeyedConsumer._risen", "first is None", "True"
    ),
    Mutation("the keys that are ahead of the floor are not saved", "KeyedConsumer.save", "_fitting(...)", "()"),
    Mutation(
        "a key that is finished up to a record is finished beyond it",
        "KeyedConsumer.finish",
        "record.offset + 1",
        "record.offset + 4",
    ),
)

# Of what readers do, whatever the consumers.
READER_MUTANTS = (
    Mutation(
        "a feed reader's position is where it has read ahead to",
        "FeedReader._next",
        "self._place = self._place_at(_)",
        "self._place = self._following.start",
    ),
    Mutation(
        "the records that followers share begin behind the place",
        "RecentRecords.records",
        "_1 > start",
        "_1 > start + 1",
    ),
    Mutation(
        "a scan by key that ends early continues behind its range",
        "KeyedScan.__next__",
        "record.offset + 1",
        "record.offset + 2",
    ),
)
