"""A store's URL leads to that store and to no other, or is refused by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from wal3_core import InvalidRequestError, open_store
from wal3_core.cli.program import cli
from wal3_core.storage.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: name not in {b".", b".."} and not set(name) & set(b"/\0")
)


@given(name=NAMES)
def test_url_of_a_directory_leads_back_to_it_whatever_its_name(
    name: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Of a name that is not UTF-8 it led to another directory, and all such names to the same one."""
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
        "memory:a?b=c",
        "memory:a#b",
        "s3://[::1",
        "gs://[",
        "file:///tmp/\0x",
        "file:///tmp/%00",
        "file:///tmp/a\nb",
        "file:///tmp/a#b",
        "s3://bucket/a#b",
        "s3://bucket/caf%E9",
    ],
)
def test_url_that_can_not_be_read_whole_is_refused_by_name(url: str) -> None:
    """It was a ValueError, or led to the store that is named by a part of it."""
    with pytest.raises(InvalidRequestError, match="store URL: expected") as refused:
        open_store(url)

    assert repr(url) in str(refused.value)


def test_command_refuses_a_url_that_can_not_be_read_in_a_line() -> None:
    result = CliRunner().invoke(cli, ["--store", "s3://[::1", "--timeout", "1", "ls"])

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: store URL: expected one that can be read, found 's3://[::1'")
    assert result.stderr.count("\n") == 1
