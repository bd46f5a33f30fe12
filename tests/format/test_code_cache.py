"""Compiled code is read only from a file that no other user may have written, and only as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal3_core.hashing import code_cache

CODE = b"code" * 1000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAL3_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_code_reads_back_and_only_its_owner_may_write_it(folder: Path) -> None:
    path = code_cache.write("a.code", CODE)

    assert path == folder / "a.code"
    assert code_cache.read("a.code") == CODE
    assert path.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in folder.iterdir()] == ["a.code"]


def test_missing_code_is_none() -> None:
    assert code_cache.read("a.code") is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_file_that_others_may_write_is_not_read(mode: int) -> None:
    code_cache.write("a.code", CODE).chmod(mode)

    assert code_cache.read("a.code") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away: run it as root")
def test_file_of_another_user_is_not_read() -> None:
    os.chown(code_cache.write("a.code", CODE), 12345, 12345)

    assert code_cache.read("a.code") is None


def test_link_is_not_followed(folder: Path) -> None:
    code_cache.write("a.code", CODE)
    (folder / "b.code").symlink_to(folder / "a.code")

    assert code_cache.read("b.code") is None


@pytest.mark.parametrize("damaged", [b"", CODE, b"\0" * 32 + CODE])
def test_damaged_code_is_not_read(damaged: bytes) -> None:
    code_cache.write("a.code", CODE).write_bytes(damaged)

    assert code_cache.read("a.code") is None


def test_without_a_cache_directory_the_temporary_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("WAL3_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert code_cache.write("a.code", CODE) == tmp_path / f"wal3-{os.getuid()}" / "a.code"
    assert code_cache.read("a.code") == CODE


def test_relative_home_is_no_place_for_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAL3_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")

    assert all(folder.is_absolute() for folder in code_cache.folders())


def test_code_that_cannot_be_kept_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WAL3_CACHE_DIR", str(tmp_path / "file" / "cache"))

    with pytest.raises(NotADirectoryError):
        code_cache.write("a.code", CODE)


def test_one_process_at_a_time_makes_code() -> None:
    with code_cache.alone("a.code") as first, code_cache.alone("a.code") as second:
        assert (first, second) == (True, False)
    with code_cache.alone("a.code") as again:
        assert again
