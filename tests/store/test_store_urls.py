"""A store's URL opens that store, or is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wal3_core import (
    CorruptError,
    CursorStore,
    InvalidRequestError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    open_store,
)
from wal3_core.cli.program import cli
from wal3_core.cli.shell.session import whole_url
from wal3_core.runtime import shared_runtime
from wal3_core.store.backends.local import LocalStore

NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: name not in {b".", b".."} and not set(name) & set(b"/\0")
)


@given(name=NAMES)
def test_url_of_a_directory_leads_back_to_it_whatever_its_name(
    name: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """URLs of names that are not UTF-8 once all led to one other directory."""
    url = LocalStore(tmp_path_factory.getbasetemp() / os.fsdecode(name)).url

    assert open_store(url).url == url


def test_directories_whose_names_are_not_utf8_are_different_stores(tmp_path: Path) -> None:
    acute, grave = (os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/caf\xe9", b"/caf\xe8"))

    appended = CliRunner().invoke(cli, ["--store", acute, "append", "--create", "--raw", "events"], input=b"one\n")
    found = CliRunner().invoke(cli, ["--store", grave, "cat", "events"])

    assert appended.exit_code == 0
    assert found.exit_code == 2
    assert [os.fspath(path) for path in tmp_path.iterdir()] == [acute]


@pytest.mark.parametrize(
    "url",
    [
        "memory://a",
        "memory:a#b",
        "s3://[::1",
        "gs://[",
        "file:///tmp/\0x",
        "file:///tmp/%00",
        "file:///tmp/a\nb",
        "file:///tmp/a#b",
        "s3://bucket/a#b",
        "s3://bucket/caf%E9",
        "s3://bucket/a//b",
        "s3://bucket/a%2F%2Fb",
        "s3://bucket/./a",
        "gs://bucket/a/../b",
        "az://container/a%7Fb",
    ],
)
def test_url_with_an_unreadable_part_is_refused_by_name(url: str) -> None:
    """It once raised ValueError, or opened the store named by a part of it."""
    with pytest.raises(InvalidRequestError, match="store URL: expected") as refused:
        open_store(url)

    assert repr(url) in str(refused.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://bucket?endpoint=", "endpoint without a value"),
        ("s3://bucket?endpoint", "endpoint without a value"),
        ("s3://bucket?endpoint=%20", "endpoint without a value"),
        ("s3://bucket?region=&endpoint=http://127.0.0.1:1", "region without a value"),
        ("s3://bucket?timeout_s=", "timeout_s without a value"),
        ("s3://bucket?endpont=", "the unknown 'endpont'"),
        ("s3://bucket?endpont=http://127.0.0.1:1", "the unknown 'endpont'"),
        ("s3://bucket?lock_wait_s=1", "the unknown 'lock_wait_s'"),
        ("s3://bucket?=x", "the unknown ''"),
        ("s3://bucket?endpoint=http://127.0.0.1:1&endpoint=http://127.0.0.1:2", "endpoint 2 times"),
        ("gs://bucket?endpoint=http://127.0.0.1:1", "the unknown 'endpoint'"),
        ("az://container?timeout_s=1&timeout_s=1", "timeout_s 2 times"),
        ("file:///tmp/a?lock_wait_s=", "lock_wait_s without a value"),
        ("file:///tmp/a?lock_wait_s=1&lock_wait_s=2", "lock_wait_s 2 times"),
        ("file:///tmp/a?timeout_s=30", "the unknown 'timeout_s'"),
        ("memory:a?b=c", "the unknown 'b'"),
        ("memory:a?timeout_s=30", "the unknown 'timeout_s'"),
    ],
)
def test_option_that_is_unknown_or_empty_or_repeated_is_refused_by_name(url: str, found: str) -> None:
    """An empty endpoint, from an unset shell variable, once opened Amazon's own bucket of that name."""
    with pytest.raises(InvalidRequestError, match="store URL: expected no option") as refused:
        open_store(url)

    # The options are left out: they may be secret.
    assert f"found {found} on {url.partition('?')[0]!r}" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAEXAMPLE:notsosecret@bucket/p",
        "s3://AKIAEXAMPLE:notso/secret@bucket/p",
        "s3://notsosecret@bucket/p#x",
        "s3:AKIAEXAMPLE:notsosecret@bucket/p",
        "http://user:notsosecret@127.0.0.1/p",
        "gs://notsosecret@[::1/p",
    ],
)
def test_password_in_a_url_is_refused_and_not_printed(url: str) -> None:
    """It was once sent as a part of the bucket's name, and printed with each error."""
    with pytest.raises(InvalidRequestError, match="store URL") as refused:
        open_store(url)
    result = CliRunner().invoke(cli, ["--store", url, "--timeout", "1", "ls"])

    assert "secret" not in str(refused.value)
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_directory_may_have_an_at_sign_in_its_name(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/user:x@y").url == f"{tmp_path.as_uri()}/user%3Ax%40y"


@pytest.mark.parametrize("name", ["x?y=1", "x?timeout_s=3", "x?timeout_s=", "a#b", "a\nb"])
def test_store_not_opened_by_url_can_have_any_name(name: str) -> None:
    store = MemoryStore(shared_runtime(), name=name)
    with LogWriter.open_or_create(store, "a") as writer:
        assert writer.append(b"x").offset == 1


@pytest.mark.parametrize("url", ["s3://bucket?endpoint=", "s3://bucket?endpoint=http://a&endpoint=http://b"])
def test_store_of_the_command_line_is_refused_as_one_of_the_library_is(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="store URL: expected no option but endpoint, etags, profile"):
        open_store(whole_url(url, timeout_s=1))


def test_etags_are_unquoted_or_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")

    with pytest.raises(InvalidRequestError, match="expected etags=unquoted, or no such option, found 'bare'"):
        open_store("s3://bucket?etags=bare")


def test_command_refuses_an_empty_endpoint_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["--store", "s3://bucket?endpoint=", "--timeout", "1", "ls"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: store URL: expected no option but endpoint, etags, profile, reads_per_s")
    assert "found endpoint without a value" in result.stderr


def test_command_refuses_a_malformed_url_in_one_line() -> None:
    result = CliRunner().invoke(cli, ["--store", "s3://[::1", "--timeout", "1", "ls"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: store URL: expected a valid URL, found 's3://[::1'")
    assert result.stderr.count("\n") == 1


def test_messages_name_a_damaged_object_by_its_url_without_the_options_of_its_store(tmp_path: Path) -> None:
    store = open_store(f"{tmp_path.as_uri()}?lock_wait_s=5")
    with LogWriter.open_or_create(store, "orders") as writer:
        writer.append(b"a record")
    (fragment,) = tmp_path.rglob("*.parquet")
    cursors = CursorStore(store, "orders")
    cursors.create("reader", LogPosition(1, 0))
    (cursor,) = tmp_path.rglob("reader.json*")
    for file in (fragment, cursor):
        file.chmod(0o644)
        file.write_bytes(b"torn")

    for read, file in ((lambda: list(LogReader.open(store, "orders").records()), fragment), (cursors.list, cursor)):
        with pytest.raises(CorruptError) as caught:
            read()

        assert file.as_uri().replace("%3D", "=") in str(caught.value)
        assert "lock_wait_s" not in str(caught.value)
