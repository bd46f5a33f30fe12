"""Logs in Spark: a data source to read them, and their verification as one job.

The only part of the library that imports pyspark; install it as ``wal3[spark]``.
"""

from wal3_core.runtime.extras import missing

try:
    from wal3_core.spark.session import local_session, register, session_conf, use_this_python
    from wal3_core.spark.verify import verify_logs
except ModuleNotFoundError as error:
    if error.name not in {"pyspark", "pandas", "py4j"}:
        raise
    message = f"wal3_core.spark: {missing(error.name, 'spark')}"
    raise ModuleNotFoundError(message, name=error.name) from error

__all__ = ["local_session", "register", "session_conf", "use_this_python", "verify_logs"]
