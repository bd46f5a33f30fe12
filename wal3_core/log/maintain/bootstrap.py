"""Begins a log at a given offset from records that come from elsewhere, with their offsets and timestamps.

Nothing can be read before everything is written: the manifest comes last, by CAS onto the claim that was made first.
Source: docs/protocol/copies.md, "Bootstrap".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from wal3_core.arguments import checked, flag, instance_of, integer, make_plain, optional, several
from wal3_core.errors import InvalidRequestError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Epoch, Manifest
from wal3_core.format.paths import LogId, check_log_name, fragment_path
from wal3_core.format.position import FIRST_OFFSET, FIRST_SEQ_NO, FragmentSeqNo, LogPosition
from wal3_core.format.record import Message, Record, check_message, keyed_setsum
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.maintain.copy.target import Claim, CopyTarget
from wal3_core.log.write.snapshotter import rolled_now
from wal3_core.log.write.stats import Meter
from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, WriterOptions
from wal3_core.runtime import US_PER_S, Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, a_store, log_store, share_of
from wal3_core.store.retrying import with_retries

# The source that a claim names: another bootstrap replaces one that was cut short by it.
_SOURCE = "records given to bootstrap"
# The year 2000: what lies behind it, and before now, is taken for the time that was meant.
_EARLY_US = 946_684_800 * US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a log that is bootstrapped begins.

    ``pruned`` is the setsum of what lay below ``first_offset`` in the source, ``setsum`` that of the
    records, if the source knows it. No record is older than ``timestamp_us``. ``any_time`` takes timestamps that lie
    far beyond the store's clock.
    """

    first_offset: int = FIRST_OFFSET
    timestamp_us: int = 0
    pruned: Setsum = EMPTY
    setsum: Setsum | None = None
    any_time: bool = False

    def __post_init__(self) -> None:
        """Refuse a position that no log can have."""
        make_plain(self, first_offset=integer, timestamp_us=integer, any_time=flag)
        make_plain(self, pruned=instance_of(Setsum), setsum=optional(instance_of(Setsum)))
        for name, least in (("first_offset", FIRST_OFFSET), ("timestamp_us", 0)):
            value = getattr(self, name)
            if not least <= value < U64_MAX:
                message = f"bootstrap {name}: expected an integer from {least} to {U64_MAX - 1}, found {value!r}"
                raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapReport:
    """What a log was begun with; ``setsum`` is that of the records, to compare with the source's own."""

    log: str
    log_id: LogId
    first_offset: int
    next_offset: int
    num_records: int
    num_bytes: int
    num_fragments: int
    setsum: Setsum


# Before the name is claimed.
@checked(
    store=a_store, records=several, origin=optional(instance_of(Origin)), options=optional(instance_of(WriterOptions))
)
def bootstrap(
    store: ObjectStore,
    log: str,
    records: Iterable[Record],
    origin: Origin | None = None,
    *,
    options: WriterOptions | None = None,
    runtime: Runtime | None = None,
) -> BootstrapReport:
    """Begin a log with records from elsewhere, unchanged, the first of them at ``origin.first_offset``.

    Offsets must be dense, timestamps must not run back, and must lie at most the options' ``clock_ahead_s_max`` beyond
    the store's clock, unless the origin allows any; records are cut into fragments as ``options`` say. LogExistsError
    when there is a log. InvalidRequestError names a record that does not fit, or the setsum when it differs from the
    origin's. There is no log then, nor when the call is cut short: call it again, which starts over, or destroy the
    remains.
    """
    runtime, options, origin = runtime or shared_runtime(), options or WriterOptions(), origin or Origin()
    root = log_store(with_retries(store, runtime, options.retry), check_log_name(log))
    # New terms each time: what an earlier try wrote is never relied on, and is deleted.
    target = CopyTarget(root, runtime, options.retry)
    claim = target.claim(target.look(_SOURCE), source=_SOURCE, terms=runtime.token())
    bootstrapping = _Bootstrapping(root, claim, origin, options, runtime)
    manifest = bootstrapping.run(records)
    written = manifest.setsum - manifest.pruned
    if origin.setsum not in {None, written}:
        message = f"bootstrap of log {log}: expected records of setsum {origin.setsum}, found {written}"
        raise InvalidRequestError(message)
    claim.finish(manifest)
    return BootstrapReport(
        log=log,
        log_id=claim.log_id,
        first_offset=manifest.first.position.offset,
        next_offset=manifest.next.position.offset,
        num_records=manifest.num_records,
        num_bytes=manifest.num_bytes,
        num_fragments=manifest.next.seq_no - manifest.first.seq_no,
        setsum=written,
    )


class _Bootstrapping:
    """The writes, a few fragments at a time; of what is written only the manifest is held in memory."""

    def __init__(
        self, root: ObjectStore, claim: Claim, origin: Origin, options: WriterOptions, runtime: Runtime
    ) -> None:
        self._claim = claim
        self._origin = origin
        self._options = options
        self._runtime = runtime
        self._token = runtime.token()
        self._ahead_us = int(options.clock_ahead_s_max * US_PER_S)
        # The store's clock, and when it said so.
        self._begun_us, self._begun_s = claim.begun_us(), runtime.monotonic_s()
        manifests = ManifestStore(root, runtime, options.retry, log_id=claim.log_id)
        self._snapshots = SnapshotStore(manifests, runtime, loaded_max=options.snapshots.loaded_max)
        self._meter = Meter(runtime, share_of(root).log.rstrip("/"))

    def run(self, records: Iterable[Record]) -> Manifest:
        """Write the records; return the manifest that leads to them, which is not installed yet."""
        origin = self._origin
        self._check_time(origin.timestamp_us, "timestamp_us of the origin")
        place = Boundary(FIRST_SEQ_NO, LogPosition(origin.first_offset, origin.timestamp_us))
        initial = Manifest.initial(
            log_id=self._claim.log_id, writer=self._runtime.process_name(), timestamp_us=origin.timestamp_us
        )
        manifest = replace(initial, setsum=origin.pruned, pruned=origin.pruned, first=place, next=place)
        entry = Epoch(1, self._token, FIRST_SEQ_NO)
        batches, count = enumerate(self._batches(records), FIRST_SEQ_NO), self._options.uploads_max
        for pointer in map_ahead(self._runtime, self._write, batches, count=count):
            appended = manifest.apply_fragments(entry, (pointer,))
            manifest = rolled_now(appended, self._snapshots, self._options, self._meter.roll_failed)
        return manifest

    def _batches(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        """Cut the records into fragments, each record checked to continue the one before."""
        batch, num_bytes = list[Record](), 0
        before = LogPosition(self._origin.first_offset, self._origin.timestamp_us)
        for given in records:
            record, size = self._checked(given, before)
            if batch and (
                num_bytes + size > self._options.batch_bytes_max or len(batch) == self._options.batch_records_max
            ):
                yield batch
                batch, num_bytes = [], 0
            batch.append(record)
            num_bytes += size
            before = LogPosition(record.offset + 1, record.timestamp_us)
        if batch:
            yield batch

    def _checked(self, record: Record, before: LogPosition) -> tuple[Record, int]:
        """Return a copy of a record, whose buffers are the caller's, and its size.

        InvalidRequestError when it is no record, or does not begin where the one before ends.
        """
        if not isinstance(record, Record):
            message = f"bootstrap: expected a Record at offset {before.offset}, found {type(record).__name__}"
            raise InvalidRequestError(message)
        try:
            offset, timestamp_us = integer(record.offset, "offset"), integer(record.timestamp_us, "timestamp_us")
            plain = Message(record.body, record.key)
            size = check_message(plain, record_bytes_max=self._options.record_bytes_max)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"bootstrap: record at offset {before.offset}: {error}") from error
        if offset != before.offset or not before.timestamp_us <= timestamp_us <= U64_MAX:
            raise InvalidRequestError(
                f"bootstrap: expected a record at offset {before.offset}, not older than {before.timestamp_us},"
                f" found one at {offset} of {timestamp_us}"
            )
        self._check_time(timestamp_us, f"record at offset {offset}")
        if offset >= U64_MAX - 1:
            raise InvalidRequestError(f"bootstrap: expected offsets below {U64_MAX - 1}, found {offset}")
        return Record(offset, timestamp_us, plain.key, plain.body), size

    def _check_time(self, timestamp_us: int, what: str) -> None:
        """Refuse a time far beyond the store's clock: no record that is appended later could be older."""
        store_us = self._begun_us + int((self._runtime.monotonic_s() - self._begun_s) * US_PER_S)
        limit_us = store_us + self._ahead_us
        if timestamp_us > limit_us and not self._origin.any_time:
            unit = " (in nanoseconds?)" if _EARLY_US <= timestamp_us // 1000 <= limit_us else ""
            raise InvalidRequestError(
                f"bootstrap: {what}: expected a time in microseconds of at most {limit_us},"
                f" {self._ahead_us // US_PER_S} s beyond the store's clock, found {timestamp_us}{unit}: if it is right,"
                f" give an origin with any_time"
            )

    def _write(self, numbered: tuple[int, list[Record]]) -> FragmentPointer:
        seq_no, records = FragmentSeqNo(numbered[0]), numbered[1]
        first, last = records[0], records[-1]
        keys, bodies = [record.key for record in records], [record.body for record in records]
        timestamps_us = [record.timestamp_us for record in records]
        start = LogPosition(first.offset, first.timestamp_us)
        encoded = parquet.encode_table(parquet.table_of(records), seq_no=seq_no, token=self._token)
        pointer = FragmentPointer(
            path=fragment_path(seq_no, self._token),
            first_seq_no=seq_no,
            seq_no=seq_no,
            start=start,
            limit=LogPosition(last.offset + 1, last.timestamp_us),
            # Of the records as they were given: the encoded bytes are compared with it.
            setsum=keyed_setsum([record.offset for record in records], timestamps_us, keys, bodies),
            num_bytes=len(encoded.data),
            num_records=len(records),
        )
        parquet.decode(encoded.data, pointer, expanded_bytes_max=FRAGMENT_EXPANDED_BYTES_MAX)
        self._claim.write_fragment(pointer, bytes(encoded.data))
        return pointer
