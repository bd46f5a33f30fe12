"""Empty objects whose names end in a slash: consoles and file system adapters make them for folders of a bucket."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from wal3_core import CursorStore, LogAt, LogReader, LogWriter, copy, destroy, open_store, scrub
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.contents import own_objects, strangers
from wal3_core.store.object_store import Done, ObjectStore, log_store

if TYPE_CHECKING:
    import boto3


LOG = "lg"
FOLDERS = ["", "lg/", "lg/manifest/", "LIFE/", "LIFE/cursor/", "LIFE/pin/", "LIFE/log/", "LIFE/gc/", "other/"]


def mark(session: boto3.session.Session, url: str, folder: str) -> None:
    """Make a folder as the console of S3 does."""
    parts = urlsplit(url)
    client = session.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL"))
    client.put_object(Bucket=parts.netloc, Key=f"{parts.path.strip('/')}/{folder}", Body=b"")


def paths(store: ObjectStore) -> list[str]:
    return [meta.path for meta in store.list_objects("")]


@pytest.mark.slow
def test_empty_object_is_listed_and_the_marker_of_a_folder_is_not(
    s3_url: str, aws_session: boto3.session.Session
) -> None:
    store = open_store(s3_url, session=aws_session)
    for path in ("a/b", "empty"):
        assert isinstance(store.create(path, b""), Done)
    for folder in ("", "a/", "a/c/", "z/"):
        mark(aws_session, s3_url, folder)

    assert paths(store) == ["a/b", "empty"]
    assert [meta.path for meta in store.list_objects("a/")] == ["a/b"]
    assert [meta.path for meta in store.list_objects("", start_after="a")] == ["a/b", "empty"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_marker_of_a_folder_is_no_object_of_a_log(s3_url: str, aws_session: boto3.session.Session, folder: str) -> None:
    store = open_store(s3_url, session=aws_session)
    with LogWriter.open_or_create(store, LOG) as writer:
        writer.append(b"x")
    manifest = LogReader.open(store, LOG).manifest()
    cursors = CursorStore(store, LOG)
    cursors.create("c", manifest.next.position)
    expected = paths(store)
    mark(aws_session, s3_url, folder.replace("LIFE", f"{LOG}/Life={manifest.log_id}"))

    assert paths(store) == expected
    assert list(cursors.list()) == ["c"]
    assert list(list_logs(store)) == [LOG]
    root = log_store(store, LOG)
    assert sorted(found.path for found in own_objects(root)) == [path.removeprefix("lg/") for path in expected]
    assert list(strangers(root)) == []
    assert scrub(store, LOG).sound
    assert copy(LogAt(store, LOG), LogAt(store, "copy"), with_cursors=True).num_cursors == 1
    destroy(store, LOG)
    LogWriter.create(store, LOG)
