"""One Spark session for the whole run: the JVM takes seconds to start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wal3_core import open_store
from wal3_core.spark import local_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from wal3_core.storage.object_store import ObjectStore


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores that can read logs."""
    session = local_session("wal3-tests", cores=2)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def local_store(local_url: str) -> ObjectStore:
    """The store behind ``local_url``, whose objects Spark's workers see too."""
    return open_store(local_url)
