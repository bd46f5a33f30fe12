"""A wrong target is exit code 2 and a message, not a store without logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.s3_server import new_s3_url
from wal3_core import open_store
from wal3_core.cli.program import cli
from wal3_core.fleet.identity import store_identity

from .conftest import Command

WITHOUT_LOG = [
    ("ls",),
    ("ls", "orders"),
    ("scrub", "--all"),
    ("gc", "--all"),
    ("gc", "--all", "--dry-run"),
    ("store-id",),
]
OF_A_LOG = [("cat", "a"), ("tail", "a"), ("inspect", "a"), ("cursor", "list", "a"), ("scrub", "a"), ("gc", "a")]


@pytest.mark.parametrize("arguments", WITHOUT_LOG, ids=" ".join)
def test_missing_directory_is_refused_and_not_made(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = Command(str(tmp_path / "missing"))(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{(tmp_path / 'missing').as_uri()}: expected a store, found none: correct --store" in result.stderr
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("arguments", OF_A_LOG, ids=" ".join)
def test_log_of_a_missing_directory_is_not_found_and_the_store_neither(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = Command(str(tmp_path / "missing"))(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "found none, and no store (if one is expected, correct --store or WAL3_STORE)" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [*WITHOUT_LOG, *OF_A_LOG, ("init", "a")], ids=" ".join)
def test_file_is_no_store(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "file").write_bytes(b"x")

    for target in (str(tmp_path / "file"), (tmp_path / "file" / "below").as_uri(), "/dev/null"):
        result = Command(target)(*arguments)

        assert (result.exit_code, result.stdout) == (2, "")
        assert "expected a directory, found that" in result.stderr


def test_directory_of_other_files_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")

    result = Command(str(tmp_path))("ls")

    assert result.exit_code == 2
    assert "expected a store, found other objects, like 'photos/cat.png'" in result.stderr


def test_unknown_prefix_is_refused(wal3: Command) -> None:
    wal3.ok("init", "orders")

    result = wal3("ls", "order")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "expected a log order, or logs below it, found none: `wal3 ls` lists all logs" in result.stderr


def test_bucket_that_is_not_there_is_a_mistake_like_a_directory(s3_bucket_url: str) -> None:
    missing = Command(f"{s3_bucket_url}-not-there/a")("ls")

    assert missing.exit_code == 2
    assert "there is no such bucket" in missing.stderr


@pytest.mark.slow
def test_list_of_a_bucket_names_the_stores_below(s3_url: str) -> None:
    Command(f"{s3_url}/teams").ok("append", "--create", "--raw", "orders", stdin="1\n")
    store_identity(open_store(f"{s3_url}/teams"), create=True)
    Command(s3_url).ok("append", "--create", "--raw", "other/a", stdin="1\n")

    listed = Command(s3_url)("ls")

    assert listed.exit_code == 0
    assert listed.stderr == f"teams/ is a store of its own: is its URL {s3_url}/teams?\n"


@pytest.mark.slow
def test_empty_prefix_of_a_bucket_is_no_store_until_the_first_log(s3_url: str) -> None:
    empty = Command(s3_url)("ls")
    Command(s3_url).ok("append", "--create", "--raw", "a", stdin="1\n")
    Command(s3_url).ok("destroy", "a", "--yes")

    assert empty.exit_code == 2
    assert f"store {s3_url}: expected a store, found no objects: correct --store" in empty.stderr
    assert Command(s3_url).ok("ls") == b"no logs: `wal3 init LOG` creates one\n"


@pytest.mark.slow
def test_store_with_an_identity_alone_has_no_logs(s3_bucket_url: str) -> None:
    url = new_s3_url(s3_bucket_url)
    store_identity(open_store(url), create=True)

    assert Command(url).ok("ls", "--json") == b""
    assert Command(url).ok("scrub", "--all") == b"no logs: `wal3 init LOG` creates one\n"


def test_memory_store_is_a_store() -> None:
    result = CliRunner().invoke(cli, ["--store", "memory:nothing", "ls"])

    assert (result.exit_code, result.stdout) == (0, "no logs: `wal3 init LOG` creates one\n")
