"""Everything that can go wrong, as one hierarchy; a class exists where a caller would act differently.

    LogError
    ├── InvalidRequestError          the caller's input; nothing was changed
    │   ├── LogNotFoundError         no log of that name
    │   ├── LogExistsError           a log of that name is there already
    │   └── ClosedError              the writer was closed, or the log opened before a fork
    ├── AppendError                  says what became of the records
    │   ├── NotDurableError          they are not in the log and never will be: safe to append again
    │   │   ├── ContentionError      ... because another writer took the log over
    │   │   ├── ConditionNotMetError ... because the log's next offset is another: ``next_offset``
    │   │   ├── OverloadedError      ... because there was no room to wait in: slow down
    │   │   ├── HaltedError          ... because one before them failed, and the writer is ordered: resume it
    │   │   ├── SealedError          ... because the log is sealed: append to its successor
    │   │   └── AppendReplacedError  ... because the name leads to another log now: open that one
    │   └── UnknownDurabilityError   they may be in the log: read before appending again
    ├── LogReplacedError             the name leads to another log than the one that was opened: open it again
    ├── CursorConflictError          somebody else moved the cursor: load it and decide again
    ├── GarbageCollectedError        the position lies below the log's first one
    ├── CollectionRefusedError       collecting would not be safe, or takes too much: somebody must look
    │   └── OutdatedPlanError        the log has changed since it was planned: plan again
    ├── CorruptError                 stored bytes are not what was written
    │   └── MissingError             ... because the object is gone: a fresh manifest tells why
    └── UnavailableError             the store does not answer: try again later
        ├── StoreDeniedError         it refuses (no access, no bucket, no space): change that first
        └── UnsuitableStoreError     it can not keep a log's promises

The third outcome of an append, durable, is not an error: the append returns its position, also
when it had to be found out from the manifest.
"""


class LogError(Exception):
    """Base of every error of this library; the message names the object, what was expected, what was found."""


class InvalidRequestError(LogError):
    """The request can not be served as it stands; nothing was changed."""


class LogNotFoundError(InvalidRequestError):
    """There is no log of that name in the store."""


class LogExistsError(InvalidRequestError):
    """A log of that name exists already and was left untouched."""


class ClosedError(InvalidRequestError):
    """The writer was closed, or what is used was opened before this process was forked; open another."""


class AppendError(LogError):
    """An append was not acknowledged; the subclass says what became of its records."""


class NotDurableError(AppendError):
    """The records are not in the log and never will be; appending them again can not double them."""


class ContentionError(NotDurableError):
    """Another writer took the log over before the records were committed."""


class ConditionNotMetError(NotDurableError):
    """The records would not have landed at the offset asked for; ``next_offset`` is where the log ended instead."""

    def __init__(self, message: str, *, next_offset: int = 0) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class OverloadedError(NotDurableError):
    """Too many bytes wait to become durable; the append was not begun."""


class HaltedError(NotDurableError):
    """An earlier append of this ordered writer failed, which the message names; resume the writer to go on."""


class SealedError(NotDurableError):
    """The log is sealed and takes no more records."""


class LogReplacedError(LogError):
    """The name leads to another log than the one that was opened: that one was destroyed, or restored, meanwhile."""


class AppendReplacedError(NotDurableError, LogReplacedError):
    """The log that the writer opened is gone, and its name leads to another one: open a writer of that."""


class UnknownDurabilityError(AppendError):
    """The records may or may not be in the log; read the log before appending them again."""


class CursorConflictError(LogError):
    """The cursor is not what the witness says; load it again."""


class GarbageCollectedError(LogError):
    """The position lies below the first position the log still holds."""


class CollectionRefusedError(LogError):
    """Garbage is not collected: that would not be safe, or takes more than is allowed; nothing was changed."""


class OutdatedPlanError(CollectionRefusedError):
    """What was planned is not what there is by now: cursors have come, or somebody else has collected."""


class CorruptError(LogError):
    """Stored bytes are damaged, missing, or contradict what refers to them."""


class MissingError(CorruptError):
    """An object is gone that something refers to; ``path`` names it."""

    # With a default, as every argument but the message: an error is pickled and copied by its message and attributes.
    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnavailableError(LogError):
    """The object store did not answer."""


class StoreDeniedError(UnavailableError):
    """The object store refuses, and will until somebody changes access, bucket or space; nothing was changed."""


class UnsuitableStoreError(UnavailableError):
    """The object store ignores conditions on PUT, so no log can live on it."""
