"""An ordered writer's halt at its first failure, and what is known when it resumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import HaltedError, UnavailableError, UnknownDurabilityError
from wal3_core.log.write.commit import searched
from wal3_core.model.manifest import Durability
from wal3_core.storage.documents.manifest_store import Installed
from wal3_core.storage.retrying import until_answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.errors import AppendError
    from wal3_core.log.write.in_flight import InFlightFragment
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.manifest_store import ManifestStore
    from wal3_core.storage.documents.snapshot_store import SnapshotStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """The outcomes of the appends since an ordered writer was opened, or last resumed.

    The first ``appends`` of those submitted, ``records`` in all, are in the log, in their order and with no
    other of this writer's between; none behind them is, nor will be. ``next_offset`` follows the last of
    them, None when there is none. ``failure`` is what halted the writer; None when it was not halted.
    ``determined`` is true when an unknown outcome was determined.
    """

    appends: int
    records: int
    next_offset: int | None
    failure: AppendError | None
    determined: bool


@dataclass(frozen=True, slots=True)
class UndeterminedCommit:
    """Fragments whose commit went unanswered: all of them are in the log, or none."""

    flights: Sequence[InFlightFragment]


class Halt:
    """Whether the writer is halted and by what, and how much is durable so far. Guarded by its owner's lock."""

    def __init__(self, url: str, *, ordered: bool) -> None:
        self._url = url
        self.ordered = ordered
        self.failure: AppendError | None = None
        self.undetermined: UndeterminedCommit | None = None
        self._appends = 0
        self._records = 0
        self._next_offset: int | None = None

    def acknowledged(self, flight: InFlightFragment) -> None:
        """Count a fragment that is durable."""
        self._appends += len(flight.entries)
        self._records += flight.num_records
        self._next_offset = flight.start.offset + flight.num_records

    def stop(self, failure: AppendError, undetermined: UndeterminedCommit | None = None) -> bool:
        """Halt an ordered writer at its first failure; return whether this was it."""
        if self.ordered and self.failure is None:
            self.failure, self.undetermined = failure, undetermined
            return True
        return False

    def refusal(self) -> HaltedError | None:
        """Return why nothing is appended; None when the writer is not halted."""
        if self.failure is None:
            return None
        message = (
            f"log {self._url}: not appended: an earlier append of this ordered writer failed"
            f" (resume() lets it continue): {self.failure}"
        )
        return HaltedError(message)

    def resume(self, verdict: Durability | None) -> ResumeReport:
        """Continue, with the verdict on the undetermined fragments, and restart the counts."""
        if verdict is Durability.DURABLE and self.undetermined is not None:
            for flight in self.undetermined.flights:
                self.acknowledged(flight)
        report = ResumeReport(
            appends=self._appends,
            records=self._records,
            next_offset=self._next_offset,
            failure=self.failure,
            determined=verdict is not None,
        )
        self.failure = self.undetermined = self._next_offset = None
        self._appends = self._records = 0
        return report


class OutcomeLookup:
    """Determines what became of a commit that went unanswered."""

    def __init__(self, manifests: ManifestStore, snapshots: SnapshotStore, runtime: Runtime) -> None:
        self._manifests = manifests
        self._snapshots = snapshots
        self._runtime = runtime

    def look_up(self, undetermined: UndeterminedCommit, retry: RetryOptions) -> Durability:
        """Return the final outcome: DURABLE, or NOT_DURABLE and never will be.

        UnavailableError when the store does not answer, UnknownDurabilityError when the log no longer shows it.
        """
        return until_answered(lambda: self._ask(undetermined), retry, self._runtime)

    def _ask(self, undetermined: UndeterminedCommit) -> Durability:
        found = self._manifests.load()
        first = undetermined.flights[0]
        entry = first.term.entry
        verdict = found.manifest.durability(entry.epoch, entry.token, first.seq_no)
        if verdict is Durability.UNKNOWN:
            assert first.pointer is not None
            verdict = searched(found.manifest, first.pointer, self._snapshots.load)
            if verdict is not Durability.UNKNOWN:
                return verdict
            gone = "collected" if first.seq_no < found.manifest.first.seq_no else "compacted"
            message = f"{self._manifests.what}: fragment {first.seq_no} was {gone}: unknown whether it was ours"
            raise UnknownDurabilityError(message)
        if verdict is Durability.DURABLE or found.manifest.seal is not None:
            return verdict
        # A CAS of ours may still be under way: once the manifest is another version, none can be applied.
        if not isinstance(self._manifests.install(found.manifest, found), Installed):
            message = f"{self._manifests.what}: still unknown what became of an unanswered commit"
            raise UnavailableError(message)
        return verdict
