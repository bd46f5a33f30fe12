"""Logs in Spark: a data source to read them, and their verification as one job.

The only part of the library that imports pyspark; install it as ``wal3[spark]``.
"""

try:
    from wal3_core.spark.session import local_session, register, session_conf, use_this_python
    from wal3_core.spark.verify import verify_logs
except ModuleNotFoundError as missing:
    if missing.name not in {"pyspark", "pandas", "py4j"}:
        raise
    message = (
        f"wal3_core.spark: expected the package {missing.name}, found that it is not installed:"
        f" pip install 'wal3[spark]'"
    )
    raise ModuleNotFoundError(message, name=missing.name) from missing

__all__ = ["local_session", "register", "session_conf", "use_this_python", "verify_logs"]
