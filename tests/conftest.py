"""What the tests share: a real S3 server, and a store of each kind."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import boto3
import pytest
from hypothesis import settings

from tests.effort import PART, PARTS, in_part, some
from tests.lanes import hash_all_in_lanes_if_asked
from tests.s3_server import new_s3_url, s3_server, use_endpoint
from tests.worker_groups import pytest_xdist_make_scheduler  # noqa: F401 - a hook
from tests.worker_stacks import (  # noqa: F401 - hooks
    pytest_configure_node,
    pytest_sessionstart,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from wal3_core import MemoryStore
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

TESTS = Path(__file__).parent
# Shared machines are slow at times: only what is asserted may fail a test, and a failure prints how to replay it.
settings.register_profile("wal3", deadline=None, print_blob=True, max_examples=some(100))
settings.load_profile("wal3")
# For sessions of seconds: code that is never optimized is cheaper than the compiler's threads.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


# One Spark session serves all their tests that start one: these run in one worker, beside the others.
_ON_SPARK = {"orchestration", "spark"}
_SPARK_RAN = pytest.StashKey[bool]()


def pytest_configure() -> None:
    """Take the compiled hashing for all batches, if asked."""
    hash_all_in_lanes_if_asked()


def pytest_report_header() -> str:
    """Say which of the slow tests are run."""
    return "slow tests: all" if PART is None else f"slow tests: part {PART} of 0 to {PARTS - 1}; PART=all runs all"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests stay together when they run in several workers, which repeat others, which have a turn."""
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if room == "cluster":
            item.add_marker(pytest.mark.cluster)
        if room == "abuse":
            # They wait for Dagster's daemon, for minutes in all.
            item.add_marker(pytest.mark.repeat)
            item.add_marker(pytest.mark.xdist_group("abuse"))
        elif room in _ON_SPARK and item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.xdist_group("spark"))
        # The protocol calls no store but by the port, whose own tests run on every store.
        left = (
            {"local", "s3"} if room == "spec" else {store for on in item.iter_markers("repeat_on") for store in on.args}
        )
        if _store_of(item) in left:
            item.add_marker(pytest.mark.repeat)
    if PART is not None:
        _take_part(config, items, PART)


def _take_part(config: pytest.Config, items: list[pytest.Item], part: int) -> None:
    cases: Counter[str] = Counter()
    taken, left = [], []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if not marks & {"slow", "spark"} or marks & {"repeat", "cluster"}:
            taken.append(item)
            continue
        function = item.nodeid.partition("[")[0]
        (taken if in_part(function, cases[function], part) else left).append(item)
        cases[function] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = taken


def pytest_collection_finish() -> None:
    """Spare each collection of garbage the ten thousand tests and all modules: they live until the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Give the teardown a deadline too: the others end with the first failure of a test."""
    timeout_s = float(item.config.getini("faulthandler_timeout"))
    if timeout_s > 0:
        faulthandler.dump_traceback_later(timeout_s, exit=True)
    result = yield
    if _spark_runs() and not item.config.stash.get(_SPARK_RAN, False):
        item.config.stash[_SPARK_RAN] = True
        # Else each worker of a run would start a JVM.
        assert item.get_closest_marker("spark"), f"{item.nodeid} starts a Spark session: mark it spark"
    return result


def _spark_runs() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _store_of(item: pytest.Item) -> object:
    called = getattr(item, "callspec", None)
    return None if called is None else called.params.get("store", called.params.get("store_url"))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 API over HTTP: the one named by WAL3_TEST_S3_ENDPOINT, or a MiniStack of our own."""
    named = os.environ.get("WAL3_TEST_S3_ENDPOINT")
    if named:
        yield named
        return
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_bucket_url(s3_endpoint: str) -> str:
    """A bucket on the S3 server; the environment then names the server, as a user's would."""
    return use_endpoint(s3_endpoint)


@pytest.fixture(scope="session")
def aws_session(s3_bucket_url: str) -> boto3.session.Session:
    """One session for all stores: each new one reads a megabyte of what AWS has where."""
    assert s3_bucket_url
    return boto3.session.Session()


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store of each kind in turn."""
    if request.param == "memory":
        return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)
    session = request.getfixturevalue("aws_session") if request.param == "s3" else None
    return open_store(request.getfixturevalue(f"{request.param}_url"), session=session)


@pytest.fixture
def memory_store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    """An empty local store's URL."""
    return (tmp_path / "store").as_uri()


@pytest.fixture
def s3_url(s3_bucket_url: str) -> str:
    """An empty S3 store's URL; WAL3_TEST_S3_OPTIONS is added to it, for instance ``?etags=unquoted``."""
    return new_s3_url(s3_bucket_url)


@pytest.fixture(params=["local", "s3"])
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty store that other processes can open too."""
    return str(request.getfixturevalue(f"{request.param}_url"))
