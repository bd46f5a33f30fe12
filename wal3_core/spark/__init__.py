"""Logs in Spark: a data source to read, stream and write them, their verification as one job, key compaction's engine.

The only part of the library that imports pyspark; install it as ``wal3[spark]``. Names are imported when they are first
used: every Python worker that Spark starts imports this package for the data source, and waits for it.
"""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from wal3_core.runtime.extras import missing as _missing

if _typing.TYPE_CHECKING:
    from wal3_core.spark.compact import SparkEngine
    from wal3_core.spark.session import local_session, register, session_conf, use_this_python
    from wal3_core.spark.verify import verify_logs

try:
    _import_module("pyspark")
except ModuleNotFoundError as error:
    if error.name not in {"pyspark", "py4j"}:
        raise
    raise ModuleNotFoundError(f"wal3_core.spark: {_missing(error.name, 'spark')}", name=error.name) from error

_HOMES = {
    "SparkEngine": "wal3_core.spark.compact",
    "local_session": "wal3_core.spark.session",
    "register": "wal3_core.spark.session",
    "session_conf": "wal3_core.spark.session",
    "use_this_python": "wal3_core.spark.session",
    "verify_logs": "wal3_core.spark.verify",
}

__all__ = ["SparkEngine", "local_session", "register", "session_conf", "use_this_python", "verify_logs"]


# A type checker that saw it would accept any name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            text = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(text)
        try:
            value = globals()[name] = getattr(_import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            text = f"wal3_core.spark: {_missing(error.name, 'spark')}"
            raise ModuleNotFoundError(text, name=error.name) from error
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
