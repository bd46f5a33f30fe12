"""The options of ``df.write.format("wal3")`` and ``df.writeStream.format("wal3")``, read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StringType

from wal3_core.errors import InvalidRequestError
from wal3_core.model.paths import check_cursor_name, check_log_name
from wal3_core.spark.request import flag_option, known_options, number_option, store_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

_OPTIONS = frozenset({"store", "log", "create", "writer", "write_id", "write_number", "same_rows", "routes"})
_OF_WRITERS = ("write_number", "same_rows", "routes")
# Spark's own, which it hands over with the others.
_OF_QUERIES = frozenset({"checkpointLocation", "queryName"})
_COLUMNS = ("key", "body", "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """Where to write, and as what.

    ``log`` is None when a column names it. ``create`` initializes logs that do not exist. ``writer`` names who
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
        found = known_options(options, _OPTIONS | _OF_QUERIES if streaming else _OPTIONS)
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
        message = (
            "options of a stream's writer: expected writer, a name for this query alone, and no write_id, found"
            f" {sorted(named) or 'neither'}"
        )
        raise InvalidRequestError(message)
    if not streaming and ("writer" in found) != ("write_id" in found):
        message = "options of a write: expected writer and write_id together, or neither, found one"
        raise InvalidRequestError(message)
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
