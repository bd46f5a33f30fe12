"""The error hierarchy; a class exists where a caller would act differently.

    LogError
    ├── InvalidRequestError          the caller's input; nothing was changed
    │   ├── LogNotFoundError         no log of that name
    │   ├── LogExistsError           a log of that name exists already
    │   ├── ClosedError              what was called is closed, or was opened before a fork
    │   └── FeedMovedError           the feed goes on in another log: open ``successor`` at ``position``
    ├── AppendError                  an append was not acknowledged
    │   ├── NotDurableError          they are not in the log and never will be: safe to append again
    │   │   ├── ContentionError      ... because they lost their place to other writers too often
    │   │   ├── ConditionNotMetError ... because the log's next offset differs: ``next_offset``
    │   │   ├── OverloadedError      ... because too many bytes are waiting: slow down
    │   │   │   └── BackPressureError ... because the log's consumers are too far behind: wake them
    │   │   ├── HaltedError          ... because an earlier append of an ordered writer failed: resume it
    │   │   ├── SealedError          ... because the log is sealed: append to its successor
    │   │   ├── KeyRequiredError     ... because the log is keyed, and a record has no key: give it one
    │   │   ├── ViewRequiredError    ... because the log is another view's: append by that one, or to another log
    │   │   └── AppendReplacedError  ... because the name now leads to another log: open that one
    │   ├── UnknownDurabilityError   they may be in the log: read before appending again
    │   └── UnmarkedError            they are in the log, from ``offset`` on: do not append again
    ├── LogReplacedError             the name leads to another log than the one opened: open it again
    ├── CursorConflictError          the cursor was moved meanwhile: load it and decide again
    ├── GarbageCollectedError        the position lies below the log's first one
    ├── CollectionRefusedError       collecting would not be safe, or deletes too much: an operator must look
    │   └── OutdatedPlanError        the log has changed since the plan was made: plan again
    ├── UnknownItemError             the queue has no such item, or has it no longer
    ├── StaleTokenError              the item's lease has ended, or is another one: leave the item alone
    ├── QueueFullError               the queue has as many items as it may: try again later
    ├── FencedError                  another process is the queue's broker now: open the queue again to take it back
    ├── CorruptError                 stored bytes are not what was written
    │   └── MissingError             ... because the object is gone: a fresh manifest shows why
    └── UnavailableError             the store does not answer: try again later
        └── StoreDeniedError         it refuses (no access, no bucket, no space): change that first
            └── UnsuitableStoreError it cannot keep a log's promises

The third outcome of an append, durable, is not an error: the append returns its position, also
when that had to be read from the manifest.
"""


class LogError(Exception):
    """Base of every error of this library; the message names the object, what was expected, what was found."""


class InvalidRequestError(LogError):
    """The request cannot be served as it stands; nothing was changed."""


class LogNotFoundError(InvalidRequestError):
    """There is no log of that name in the store, or one that is being destroyed, and whose end was reached."""


class LogExistsError(InvalidRequestError):
    """A log of that name exists already and was left untouched."""


class ClosedError(InvalidRequestError):
    """The object was closed, or opened before this process was forked; open another."""


class FeedMovedError(InvalidRequestError):
    """The feed's log is sealed and was received to its end; it goes on in the log ``successor``, at ``position``."""

    def __init__(self, message: str, *, successor: str = "", position: str = "") -> None:
        super().__init__(message)
        self.successor = successor
        self.position = position


class AppendError(LogError):
    """An append was not acknowledged; the subclass says whether its records are in the log."""


class NotDurableError(AppendError):
    """The records are not in the log and never will be; appending them again cannot duplicate them."""


class ContentionError(NotDurableError):
    """The records lost their place too often, or until their time was over: to other writers, or to maintenance."""


class ConditionNotMetError(NotDurableError):
    """The records would not have been placed at the requested offset; ``next_offset`` is where the log ended."""

    def __init__(self, message: str, *, next_offset: int = 0) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class TailMismatchError(NotDurableError):
    """The key's last record is not the expected one; ``tail`` is its offset, 0 when the log holds no record of it."""

    def __init__(self, message: str, *, tail: int = 0) -> None:
        super().__init__(message)
        self.tail = tail


class OverloadedError(NotDurableError):
    """Too many bytes wait to become durable; the append was not started."""


class BackPressureError(OverloadedError):
    """The log has too many unprocessed records; the append was not started. It lifts by itself.

    ``log`` has ``unprocessed`` records, more than ``limit``. ``consumer`` names the cursor that is farthest behind:
    wake that consumer. Empty: the log has no cursor.
    """

    def __init__(
        self, message: str, *, log: str = "", consumer: str = "", unprocessed: int = 0, limit: int = 0
    ) -> None:
        super().__init__(message)
        self.log = log
        self.consumer = consumer
        self.unprocessed = unprocessed
        self.limit = limit


class HaltedError(NotDurableError):
    """An earlier append of this ordered writer failed; the message names it. Resume the writer to continue."""


class SealedError(NotDurableError):
    """The log is sealed and takes no more records; ``successor`` names the log that continues it, if one does."""

    def __init__(self, message: str, *, successor: str = "") -> None:
        super().__init__(message)
        self.successor = successor


class KeyRequiredError(NotDurableError, InvalidRequestError):
    """The log is keyed, since its policy compacts it, and a record of the append has no key."""


class ViewRequiredError(NotDurableError, InvalidRequestError):
    """The log's policy gives it to one view (a feed, a keyed log or a queue), and something else appends."""


class LogReplacedError(LogError):
    """The name leads to another log than the one opened, which was destroyed, or restored, meanwhile."""


class AppendReplacedError(NotDurableError, LogReplacedError):
    """The log that the writer opened is gone, and its name leads to another one: open a writer of that log."""


class UnknownDurabilityError(AppendError):
    """The records may or may not be in the log; read the log before appending them again."""


class UnmarkedError(AppendError):
    """The records are in the log, from ``offset`` on, but not marked in the server's dirty log.

    Appending them again would duplicate them. Maintenance learns of them by the log's next marked append, or
    by a sweep over all logs.
    """

    def __init__(self, message: str, *, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class CursorConflictError(LogError):
    """The cursor no longer has the witness's version; load it again."""


class GarbageCollectedError(LogError):
    """The position lies below the first position the log still holds."""


class CollectionRefusedError(LogError):
    """Garbage is not collected: it would not be safe, or would delete more than is allowed; nothing was changed.

    ``unclaimed`` says that the log has no cursor, nor a policy that does without: no fault, but nothing to collect.
    """

    def __init__(self, message: str, *, unclaimed: bool = False) -> None:
        super().__init__(message)
        self.unclaimed = unclaimed


class OutdatedPlanError(CollectionRefusedError):
    """The plan no longer fits the log: cursors were created, or another collector has collected."""


class KeyCompactionRefusedError(LogError):
    """A log is not compacted by key: its policy does not say so, or it would not be safe; nothing was changed."""


class UnknownItemError(LogError):
    """A queue has no item of that id in that state."""


class StaleTokenError(LogError):
    """An item is not leased by that token: the lease has ended, or the item was given up or handed out again."""


class QueueFullError(LogError):
    """A queue has as many items as its definition allows; nothing was added."""


class FencedError(LogError):
    """Another process has become the broker of a queue; this one does nothing more with it."""


class CorruptError(LogError):
    """Stored bytes are damaged, missing, or contradict what refers to them."""


class MissingError(CorruptError):
    """An object that something refers to is gone; ``path`` names it."""

    # Every argument but the message has a default: errors are pickled and copied by their message and attributes.
    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnavailableError(LogError):
    """The object store did not answer; ``slow_down`` says that it refused because it gets too many requests."""

    def __init__(self, message: str = "", *, slow_down: bool = False) -> None:
        super().__init__(message)
        self.slow_down = slow_down


class StoreDeniedError(UnavailableError):
    """The object store refuses, and will until access, bucket or space is changed; nothing was changed.

    ``full`` says that it has no space left: what can be deleted, still is. ``no_bucket`` says that its bucket is not
    there: the URL is wrong, or the bucket is to be created.
    """

    def __init__(
        self, message: str = "", *, slow_down: bool = False, full: bool = False, no_bucket: bool = False
    ) -> None:
        super().__init__(message, slow_down=slow_down)
        self.full = full
        self.no_bucket = no_bucket


class UnsuitableStoreError(StoreDeniedError):
    """The object store ignores conditions on PUT, or cannot create an object by one step: no log can live on it."""
