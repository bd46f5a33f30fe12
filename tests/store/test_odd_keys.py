"""A key that no object of a log can have stops no log but one in whose folders it lies."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from wal3_core import (
    CollectionRefusedError,
    CollectorOptions,
    CorruptError,
    CursorStore,
    InvalidRequestError,
    LogPosition,
    LogReader,
    LogWriter,
    StoreDeniedError,
    collect,
    destroy,
    list_logs,
    open_store,
    scrub,
)
from wal3_core.store.backends.remote import Clients, RemoteStore
from wal3_core.store.object_store import ObjectStore, is_odd

if TYPE_CHECKING:
    import boto3


LOG, OTHER = "orders", "other"
# LIFE is the folder of the log's life.
OUTSIDE = ("/x", "./x", "a\nb/x", "a//b/x")
BELOW = (f"{LOG}//x", f"{LOG}/../x", f"{LOG}/a\nb/x")
INSIDE = ("LIFE/cursor//x.json", "LIFE/log//x", "LIFE/snapshot//x", "LIFE//x", "LIFE/cursor/a\nb.json")


def put(session: boto3.session.Session, url: str, key: str) -> None:
    """Write a foreign object; skip where the server does not take the key."""
    parts = urlsplit(url)
    client = session.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL"))
    whole = f"{parts.path.strip('/')}/{key}"
    try:
        client.put_object(Bucket=parts.netloc, Key=whole, Body=b"x")
    except client.exceptions.ClientError as error:
        pytest.skip(f"expected a server that takes the key {whole!r}, found {error}")
    prefix = parts.path.strip("/")
    listed = client.list_objects_v2(Bucket=parts.netloc, Prefix=prefix)["Contents"]
    if whole not in [each["Key"] for each in listed]:
        pytest.skip(f"expected a server or a client that leaves the key {whole!r} as it is, found it changed")


@pytest.fixture
def logs(s3_url: str, aws_session: boto3.session.Session) -> ObjectStore:
    """A store with two logs of one record, one of which has a cursor."""
    store = open_store(s3_url, session=aws_session)
    for name in (LOG, OTHER):
        with LogWriter.open_or_create(store, name) as writer:
            writer.append(b"x")
        CursorStore(store, name).create("c", LogPosition(2, 0))
    return store


def beside(store: ObjectStore, session: boto3.session.Session, url: str, key: str) -> str:
    """Put a foreign object there; return its path in the store."""
    path = key.replace("LIFE", f"{LOG}/Life={LogReader.open(store, LOG).manifest().log_id}")
    put(session, url, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("key", [*OUTSIDE, *BELOW, *INSIDE])
def test_odd_key_hides_no_log_and_is_listed(
    logs: ObjectStore, s3_url: str, aws_session: boto3.session.Session, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = [meta.path for meta in logs.list_objects("")]
    path = beside(logs, aws_session, s3_url, key)

    with caplog.at_level(logging.WARNING, "wal3.store"):
        assert list(list_logs(logs)) == [LOG, OTHER]
        listed = [meta.path for meta in logs.list_objects("")]
        assert list(logs.list_objects("", start_after=before[-1])) == []
        assert list(logs.list_objects("", start_after=path)) != list(logs.list_objects(""))

    assert listed == sorted([*before, path])
    assert is_odd(path)
    # One warning for each key, or folder, that was met.
    warned = [record.getMessage() for record in caplog.records if "expected keys with names" in record.getMessage()]
    assert any(repr(f"{urlsplit(s3_url).path.strip('/')}/{path}") in each for each in warned)
    assert len(warned) == len(set(warned))
    assert scrub(logs, OTHER).sound
    assert collect(logs, OTHER, options=CollectorOptions(interval_s=0, fraction_max=1)).plan.empty is False
    assert destroy(logs, OTHER) > 0


@pytest.mark.slow
@pytest.mark.parametrize("key", [*BELOW, *INSIDE])
def test_log_with_an_odd_key_below_it_is_not_destroyed(
    logs: ObjectStore, s3_url: str, aws_session: boto3.session.Session, key: str
) -> None:
    path = beside(logs, aws_session, s3_url, key)

    with pytest.raises(
        InvalidRequestError, match=r"expected only a log's objects, found (.|\n)*: move or delete them first"
    ) as refused:
        destroy(logs, LOG)

    assert path.removeprefix(f"{LOG}/") in str(refused.value)
    assert [record.body for record in LogReader.open(logs, LOG).records()] == [b"x"]


@pytest.mark.parametrize("key", [key for key in INSIDE if "cursor" in key])
def test_odd_key_among_the_cursors_stops_the_collection_of_their_log(
    logs: ObjectStore, s3_url: str, aws_session: boto3.session.Session, key: str
) -> None:
    beside(logs, aws_session, s3_url, key)

    with pytest.raises(CorruptError, match=r"expected cursor/<name>.json"):
        CursorStore(logs, LOG).list()
    with pytest.raises(CollectionRefusedError, match="nothing is deleted while a cursor or pin cannot be read"):
        collect(logs, LOG, options=CollectorOptions(interval_s=0, fraction_max=1))


def test_store_that_can_list_only_by_obstore_names_the_key(
    logs: ObjectStore, s3_url: str, aws_session: boto3.session.Session
) -> None:
    """As Azure and Google Cloud Storage."""
    path = beside(logs, aws_session, s3_url, "/x")
    parts = urlsplit(s3_url)
    client = S3Store(
        parts.netloc,
        config={"endpoint": os.environ["AWS_ENDPOINT_URL"]},
        client_options={"allow_http": True},
        credential_provider=Boto3CredentialProvider(aws_session),
    )
    opened = RemoteStore(s3_url, Clients(lambda _: client, client), folder=parts.path)

    with pytest.raises(StoreDeniedError, match=f"invalid path: Path .*/{path}. contained empty path segment"):
        list(opened.list_objects(""))
    with pytest.raises(StoreDeniedError, match="invalid path: Path"):
        list(list_logs(opened))
    with pytest.raises(StoreDeniedError, match="expected names between the slashes of a path, found '/'"):
        list(opened.list_objects("/"))
    assert list(list_logs(opened, LOG)) == [LOG]
