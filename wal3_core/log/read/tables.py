"""A log as one table in memory: for Arrow, pandas and polars."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from wal3_core.arguments import checked, instance_of, optional
from wal3_core.errors import InvalidRequestError
from wal3_core.model.manifest import Manifest
from wal3_core.model.position import read_start
from wal3_core.options import UNLIMITED, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it ships no types
    import polars as pl  # type: ignore[import-not-found,unused-ignore]  # optional

    from wal3_core.model.position import ReadStart

# The columns of ``batches``. Times are times, so that they can be compared with others and shown; binary columns are
# large ones, since a table may hold more than 2 GiB of bodies.
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp_us", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.large_binary()),
        pa.field("body", pa.large_binary()),
    ]
)


class Tables(Protocol):
    """The methods of a reader that return records as a table.

    A table holds all its records in memory, and about twice that while it is made: give limits, or go through
    ``batches`` where the log may be larger. Everything is checked as in ``records``, and belongs to one manifest.
    """

    def batches(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Go through the log as Arrow batches (offset, timestamp_us, key, body)."""
        ...

    @checked(start=read_start, limits=instance_of(Limits), manifest=optional(instance_of(Manifest)))
    def to_arrow(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pa.Table:
        """Return the range's records as a ``pyarrow.Table``.

        Its columns are offset (uint64), timestamp_us (timestamp[us, UTC]), key and body (binary; null where a record
        has none).
        """
        batches = [_typed(batch) for batch in self.batches(start, limits, manifest=manifest)]
        return pa.Table.from_batches(batches, schema=SCHEMA)

    @checked(start=read_start, limits=instance_of(Limits), manifest=optional(instance_of(Manifest)))
    def to_pandas(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pd.DataFrame:
        """Return ``to_arrow`` as a pandas DataFrame; ModuleNotFoundError where pandas is not installed."""
        _require("pandas", "to_pandas")
        return self.to_arrow(start, limits, manifest=manifest).to_pandas()

    @checked(start=read_start, limits=instance_of(Limits), manifest=optional(instance_of(Manifest)))
    def to_polars(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pl.DataFrame:
        """Return ``to_arrow`` as a polars DataFrame; ModuleNotFoundError where polars is not installed."""
        polars = _require("polars", "to_polars")
        return cast("pl.DataFrame", polars.from_arrow(self.to_arrow(start, limits, manifest=manifest)))


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch[field.name] for field in SCHEMA]
    try:
        columns[1] = columns[1].cast(pa.int64())
    except pa.ArrowInvalid as error:
        message = f"table: expected times within 64 bits with a sign, found others: use batches(): {error}"
        raise InvalidRequestError(message) from error
    arrays = [column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _require(package: str, method: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{method}: expected {package} to be installed, found none: pip install {package}"
        raise ModuleNotFoundError(message, name=package) from error
