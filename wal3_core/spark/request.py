"""The options of ``spark.read.format("wal3")``, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.model.paths import check_log_name
from wal3_core.model.strict_json import U64_MAX
from wal3_core.spark.bounds import Bounds, Span
from wal3_core.spark.columns import spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

# As measured: two tasks more than two take a read of 400 MiB a fifth longer.
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
    not hold that offset is an error, a log outside a filter is not. ``partitions`` is the number of tasks
    aimed at, by default from ``partition_bytes`` and the cores.
    """

    store: str
    logs: tuple[str, ...] | None
    prefix: str
    bounds: Bounds
    from_offset: int | None
    columns: tuple[str, ...] | None
    verify: bool
    partitions: int | None
    partition_bytes: int
    push_filters: bool

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ReadRequest:
        """Read the options; InvalidRequestError says which one is wrong."""
        found = known_options(options, _OPTIONS)
        from_offset = number_option(found, "from_offset", low=1)
        columns = None if "columns" not in found else tuple(_names(found["columns"]))
        if columns is not None:
            spark_schema(columns)
        return cls(
            store=store_option(found),
            logs=_logs(found),
            prefix=found.get("prefix", ""),
            bounds=_bounds(found),
            from_offset=from_offset,
            columns=columns,
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


def _bounds(found: Mapping[str, str]) -> Bounds:
    return Bounds(
        offsets=_span(found, "from_offset", "to_offset"),
        timestamps_us=_span(found, "from_timestamp_us", "to_timestamp_us"),
    )


def _span(found: Mapping[str, str], start_name: str, limit_name: str) -> Span:
    start, limit = number_option(found, start_name), number_option(found, limit_name)
    whole = Span()
    return Span(whole.start if start is None else start, whole.limit if limit is None else limit)


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
