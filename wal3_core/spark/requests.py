"""The options of ``format("wal3")``, read strictly: of reads, of streams, and of writes.

A read's bounds say which part of which logs is wanted: the options' own, narrowed by Spark's filters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql.datasource import (
    ColumnPath,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from wal3_core.errors import InvalidRequestError
from wal3_core.format.paths import check_cursor_name, check_log_name
from wal3_core.format.snapshot import Pointer
from wal3_core.format.strict_json import U64_MAX
from wal3_core.spark.columns import NEVER_NULL, OF_RECORDS, spark_schema


@dataclass(frozen=True, slots=True)
class Span:
    """The integers from ``start`` to ``limit``, without the limit itself."""

    start: int = 0
    limit: int = U64_MAX + 1

    def __and__(self, other: Span) -> Span:
        return Span(max(self.start, other.start), min(self.limit, other.limit))

    @property
    def empty(self) -> bool:
        """Whether no number lies in it."""
        return self.start >= self.limit


EVERYTHING = Span()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Logs (None: all that are asked for), offsets and timestamps that may hold what a query wants."""

    logs: frozenset[str] | None = None
    offsets: Span = EVERYTHING
    timestamps_us: Span = EVERYTHING

    @property
    def empty(self) -> bool:
        """Whether no record can lie within."""
        return self.offsets.empty or self.timestamps_us.empty or self.logs == frozenset()

    def wants(self, log: str) -> bool:
        """Whether the log's records may lie within."""
        return self.logs is None or log in self.logs

    def touch(self, pointer: Pointer) -> bool:
        """Whether records that a pointer covers may lie within."""
        offsets, times = self.offsets, self.timestamps_us
        return (
            offsets.start < pointer.limit.offset
            and pointer.start.offset < offsets.limit
            and times.start <= pointer.limit.timestamp_us
            and pointer.start.timestamp_us < times.limit
        )

    def hold(self, pointer: Pointer) -> bool:
        """Whether all records that a pointer covers lie within."""
        offsets, times = self.offsets, self.timestamps_us
        return (
            offsets.start <= pointer.start.offset
            and pointer.limit.offset <= offsets.limit
            and times.start <= pointer.start.timestamp_us
            and pointer.limit.timestamp_us < times.limit
        )


def apply_filter(bounds: Bounds, condition: Filter) -> Bounds | None:
    """Narrow the bounds to exactly the records that satisfy a filter; None when bounds cannot express it."""
    match condition:
        case IsNotNull(attribute=(name,)) if name in NEVER_NULL:
            return bounds
        case EqualTo(attribute=("log",), value=str(log)) | EqualNullSafe(attribute=("log",), value=str(log)):
            return _narrow_logs(bounds, frozenset({log}))
        case In(attribute=("log",), value=logs):
            return _narrow_logs(bounds, frozenset(log for log in logs if isinstance(log, str)))
    match _compared(condition):
        case ("offset",), span:
            return replace(bounds, offsets=bounds.offsets & span)
        case ("timestamp_us",), span:
            return replace(bounds, timestamps_us=bounds.timestamps_us & span)
    return None


def named_filter(condition: Filter) -> str:
    """Name a filter by its kind and column, without its values."""
    if isinstance(condition, Not):
        return f"Not {named_filter(condition.child)}"
    column: ColumnPath = getattr(condition, "attribute", ())
    return f"{type(condition).__name__}({'.'.join(column)})"


def _narrow_logs(bounds: Bounds, logs: frozenset[str]) -> Bounds:
    return replace(bounds, logs=logs if bounds.logs is None else bounds.logs & logs)


def _compared(condition: Filter) -> tuple[ColumnPath, Span] | None:
    """Read a comparison with an integer as the numbers that satisfy it."""
    match condition:
        case EqualTo(attribute=path, value=int(value)) | EqualNullSafe(attribute=path, value=int(value)):
            return path, Span(value, value + 1)
        case GreaterThan(attribute=path, value=int(value)):
            return path, Span(start=value + 1)
        case GreaterThanOrEqual(attribute=path, value=int(value)):
            return path, Span(start=value)
        case LessThan(attribute=path, value=int(value)):
            return path, Span(limit=value)
        case LessThanOrEqual(attribute=path, value=int(value)):
            return path, Span(limit=value + 1)
    return None


# ---------------------------------------------------------------------- reads

# A task's bytes, by default: as measured, two tasks more than two take a read of 400 MiB a fifth longer.
PARTITION_BYTES = 256 * 2**20
_WHICH = ("log", "logs", "prefix")
_OPTIONS = frozenset(
    {
        "store",
        *_WHICH,
        "from_offset",
        "to_offset",
        "from_timestamp_us",
        "to_timestamp_us",
        "columns",
        "verify",
        "partitions",
        "partition_bytes",
        "push_filters",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What to read and how.

    ``logs`` is None when ``prefix`` selects them. ``from_offset`` is None unless given: a log that does
    not hold that offset is an error, a log outside a filter is not. ``columns`` is None unless given; then a schema of
    the user may select them, or else they are ``default_columns``. ``partitions`` is the number of tasks
    aimed at, by default from ``partition_bytes`` and the cores.
    """

    store: str
    logs: tuple[str, ...] | None
    prefix: str
    bounds: Bounds
    from_offset: int | None
    columns: tuple[str, ...] | None
    default_columns: tuple[str, ...]
    verify: bool
    partitions: int | None
    partition_bytes: int
    push_filters: bool

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ReadRequest:
        """Read the options; InvalidRequestError says which one is wrong."""
        found = known_options(options, _OPTIONS)
        columns = None if "columns" not in found else tuple(_names(found["columns"]))
        if columns is not None:
            spark_schema(columns)
        return cls(
            store=store_option(found),
            logs=_logs(found),
            prefix=found.get("prefix", ""),
            from_offset=number_option(found, "from_offset", low=1),
            bounds=Bounds(offsets=_span(found, "offset"), timestamps_us=_span(found, "timestamp_us")),
            columns=columns,
            # Only one log needs no name. Text for each row costs more than the records, if they are small.
            default_columns=OF_RECORDS if "log" in found else ("log", *OF_RECORDS),
            verify=flag_option(found, "verify", default=True),
            partitions=number_option(found, "partitions", low=1),
            partition_bytes=number_option(found, "partition_bytes", low=1) or PARTITION_BYTES,
            push_filters=flag_option(found, "push_filters", default=False),
        )


def known_options(options: Mapping[str, str], known: frozenset[str]) -> dict[str, str]:
    """Return options by their names in lower case, as Spark compares them; InvalidRequestError for an unknown one."""
    found = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(found) - {name.lower() for name in known})
    if unknown:
        raise InvalidRequestError(f"options: expected some of {sorted(known)}, found {unknown}")
    return found


def check_shared(store: str) -> str:
    """Return a store's URL; InvalidRequestError when other processes cannot open it."""
    if store.startswith("memory:"):
        message = f"store {store}: expected one that Spark's workers can open too, found one in this process's memory"
        raise InvalidRequestError(message)
    return store


def store_option(found: Mapping[str, str]) -> str:
    """Return the store's URL, which is required."""
    if "store" not in found:
        raise InvalidRequestError("option store: expected the store's URL, found none")
    return check_shared(found["store"])


def _logs(found: Mapping[str, str]) -> tuple[str, ...] | None:
    given = [name for name in _WHICH if name in found]
    if len(given) != 1:
        raise InvalidRequestError(f"options: expected one of log, logs and prefix, found {given or 'none'}")
    if given == ["prefix"]:
        return None
    names = [found["log"]] if given == ["log"] else _names(found["logs"])
    if not names:
        raise InvalidRequestError("option logs: expected names of logs, found none")
    return tuple(dict.fromkeys(check_log_name(name) for name in names))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _span(found: Mapping[str, str], name: str) -> Span:
    """Read the bounds of a number, from inclusive, to exclusive."""
    start, limit = number_option(found, f"from_{name}"), number_option(found, f"to_{name}")
    return Span(EVERYTHING.start if start is None else start, EVERYTHING.limit if limit is None else limit)


def number_option(found: Mapping[str, str], name: str, *, low: int = 0) -> int | None:
    """Return an option's integer, None if it is not given."""
    text = found.get(name.lower())
    if text is None:
        return None
    # Only ASCII digits, and few of them: int() takes more, and long ones slowly.
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(U64_MAX)) or not low <= int(text) <= U64_MAX:
        raise InvalidRequestError(f"option {name}: expected an integer from {low} to {U64_MAX}, found {text[:40]!r}")
    return int(text)


def flag_option(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return an option that is true or false."""
    text = found.get(name.lower(), str(default)).lower()
    if text not in {"true", "false"}:
        raise InvalidRequestError(f"option {name}: expected true or false, found {text[:40]!r}")
    return text == "true"


# ---------------------------------------------------------------------- streams

BEGINNING, END = "beginning", "end"
_OF_STREAMS = frozenset({"start", "maxrecordspertrigger", "failondataloss", "cursor"})
# A stream's own place says where it reads.
_OF_BATCHES = ("from_offset", "to_offset", "from_timestamp_us", "to_timestamp_us", "push_filters")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a stream reads and how.

    ``records_max`` bounds a batch, None does not. ``cursor`` names the cursor that follows the stream in each log.
    Without ``fail_on_loss``, the stream goes on behind records, and without logs, that are gone.
    """

    reading: ReadRequest
    start: str
    records_max: int | None
    fail_on_loss: bool
    cursor: str | None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> StreamRequest:
        """Read the options; InvalidRequestError says which one is wrong."""
        of_read, found = split_options(options)
        unfit = [name for name in of_read if name.lower() in _OF_BATCHES]
        if unfit:
            message = f"options of a stream: expected none of {', '.join(_OF_BATCHES)}, found {sorted(unfit)}"
            raise InvalidRequestError(message)
        start = found.get("start", BEGINNING)
        if start not in {BEGINNING, END}:
            raise InvalidRequestError(f"option start: expected {BEGINNING} or {END}, found {start[:40]!r}")
        return cls(
            reading=ReadRequest.from_options(of_read),
            start=start,
            records_max=number_option(found, "maxRecordsPerTrigger", low=1),
            fail_on_loss=flag_option(found, "failOnDataLoss", default=True),
            cursor=None if "cursor" not in found else check_cursor_name(found["cursor"]),
        )


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options that reads in batches have, too, and those of streams alone, the latter in lower case."""
    of_read = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}
    return of_read, {name.lower(): value for name, value in options.items() if name.lower() in _OF_STREAMS}


# ---------------------------------------------------------------------- writes

_WRITE_OPTIONS = frozenset({"store", "log", "create", "writer", "write_id", "write_number", "same_rows", "routes"})
_OF_WRITERS = ("write_number", "same_rows", "routes")
# Spark's own, which it hands over with the others.
_OF_QUERIES = frozenset({"checkpointLocation", "queryName"})
_COLUMNS = ("key", "body", "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """Where to write, and as what.

    ``log`` is None when a column names it. ``create`` creates logs that do not exist. ``writer`` names who
    repeats appends, ``write_id`` this one, which a stream's batches do not need, or with ``write_number`` the series of
    which it has that number. With ``same_rows``, one that is repeated with other rows is refused. ``routes`` is the log
    that notes to which logs each append goes.
    """

    store: str
    log: str | None
    create: bool
    writer: str | None
    write_id: str | None
    write_number: int | None
    same_rows: bool
    routes: str | None

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool, streaming: bool = False
    ) -> WriteRequest:
        """Read the options; InvalidRequestError says which one, or which column, is wrong."""
        found = known_options(options, _WRITE_OPTIONS | _OF_QUERIES if streaming else _WRITE_OPTIONS)
        if overwrite:
            raise InvalidRequestError("write: expected the mode append, found one that replaces a log's records")
        _check_columns(schema, log="log" in found)
        _check_naming(found, streaming=streaming)
        return cls(
            store=store_option(found),
            log=check_log_name(found["log"]) if "log" in found else None,
            create=flag_option(found, "create", default=False),
            writer=None if "writer" not in found else check_cursor_name(found["writer"]),
            write_id=found.get("write_id"),
            write_number=number_option(found, "write_number"),
            same_rows=flag_option(found, "same_rows", default=True),
            routes=check_log_name(found["routes"], "option routes") if "routes" in found else None,
        )


def _check_naming(found: Mapping[str, str], *, streaming: bool) -> None:
    named = {"writer", "write_id", "write_number"} & set(found)
    if streaming and named != {"writer"}:
        raise InvalidRequestError(
            "options of a stream's writer: expected writer, a name for this query alone, and no write_id, found"
            f" {sorted(named) or 'neither'}"
        )
    if not streaming and ("writer" in found) != ("write_id" in found):
        raise InvalidRequestError("options of a write: expected writer and write_id together, or neither, found one")
    if "write_number" in found and not found.get("write_id"):
        message = "options of a write: expected a write_id with write_number, found none, or an empty one"
        raise InvalidRequestError(message)
    for name in _OF_WRITERS:
        if name in found and "writer" not in found:
            raise InvalidRequestError(f"options of a write: expected writer with {name}, found {name} alone")


def _check_columns(schema: StructType, *, log: bool) -> None:
    names = schema.fieldNames()
    allowed = [name for name in _COLUMNS if name != "log" or not log]
    needed = ["body"] if log else ["body", "log"]
    if len(set(names)) != len(names) or not set(needed) <= set(names) <= set(allowed):
        where = "the option log names the log" if log else "no option log names the log"
        message = f"write: expected the columns {', '.join(allowed)} (key may be left out), as {where}, found {names}"
        raise InvalidRequestError(message)
    for field in schema.fields:
        kinds = (StringType,) if field.name == "log" else (BinaryType, StringType)
        if not isinstance(field.dataType, kinds):
            expected = " or ".join(kind().simpleString() for kind in kinds)
            message = f"write: column {field.name}: expected {expected}, found {field.dataType.simpleString()}"
            raise InvalidRequestError(message)
