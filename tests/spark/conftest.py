"""One Spark session for the whole run: the JVM takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from wal3_core import open_store
from wal3_core.spark import register, session_conf, use_this_python
from wal3_core.store.object_store import ObjectStore

# Two cores, and up to two failures of a task; on other local masters none may fail.
RETRYING = "local[2, 3]"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores that can read logs; a task that fails is run again."""
    use_this_python()
    session = SparkSession.builder.appName("wal3-tests").config(map=session_conf(RETRYING)).getOrCreate()
    register(session)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def local_store(local_url: str) -> ObjectStore:
    """The store behind ``local_url``, whose objects Spark's workers see too."""
    return open_store(local_url)
