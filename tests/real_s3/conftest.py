"""Stores whose requests are judged by the policies in deploy/iam."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.real_s3.roles import USERS, EvaluatingServer, Place, RealServer, Server
from tests.real_s3.work import fill
from tests.s3_server import BUCKET


@pytest.fixture
def evaluating(s3_endpoint: str, s3_bucket_url: str) -> Iterator[EvaluatingServer]:
    """A server that lets everyone do everything, behind proxies that evaluate the policies."""
    assert s3_bucket_url
    if not s3_endpoint.startswith("http://"):
        pytest.skip("the proxy speaks plain HTTP: run it with WAL3_TEST_S3_ENDPOINT=http://… or without that variable")
    with ExitStack() as stack:
        yield EvaluatingServer(s3_endpoint, stack)


@pytest.fixture(params=["evaluated", "enforced"] if USERS else ["evaluated"])
def server(request: pytest.FixtureRequest) -> Server:
    """Policies evaluated by a proxy, and enforced by the server itself if it can."""
    if request.param == "enforced":
        request.getfixturevalue("s3_bucket_url")
        return RealServer()
    found: EvaluatingServer = request.getfixturevalue("evaluating")
    return found


@pytest.fixture
def place(s3_bucket_url: str) -> Place:
    """A store with two logs."""
    assert s3_bucket_url
    place = Place(BUCKET, uuid.uuid4().hex)
    fill(place.open())
    return place
