"""What a process may not, or cannot, look at is an error that names it: it is never taken for nothing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes.children import child
from tests.store.test_processes import answer, become_nobody, reachable_root
from wal3_core import InvalidRequestError, StoreDeniedError, UnavailableError, list_logs, open_store
from wal3_core.fleet.discovery import load_manifests
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.backends.local import LocalStore
from wal3_core.store.object_store import Done, ObjectStore
from wal3_core.store.retrying import with_retries

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


__all__ = ["reachable_root"]

MANIFEST = "manifest/MANIFEST.json"
ASKED: dict[str, Callable[[ObjectStore], object]] = {
    "read": lambda store: store.read(f"b/{MANIFEST}"),
    "get": lambda store: store.get(f"b/{MANIFEST}"),
    "head": lambda store: store.head(f"b/{MANIFEST}"),
    "list": lambda store: list(store.list_objects("")),
    "folders": lambda store: store.list_folders("b/"),
    "logs": lambda store: list(list_logs(store)),
    "manifests": lambda store: list(load_manifests(store)),
    "logs below": lambda store: list(list_logs(store, "b")),
    # What needs none of it.
    "another log": lambda store: list(list_logs(store, "a")),
    "names": lambda store: store.list_folders(""),
}
FINE = {"another log": ["a"], "names": ["a/", "b/", "lost+found/"]}


def asked(store: ObjectStore) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, ask in ASKED.items():
        try:
            found[name] = ask(store)
        except UnavailableError as error:
            found[name] = type(error), str(error)
    return found


def ask_as_nobody(connection: Connection, url: str) -> None:
    become_nobody()
    connection.send(asked(open_store(url)))


def test_folder_that_may_not_be_read_is_an_error_wherever_it_is_looked_into(reachable_root: Path) -> None:
    """It was once left out of the list of logs."""
    store = open_store(reachable_root.as_uri())
    for path in ("a/manifest/MANIFEST.json", "a/x/b", "b/manifest/MANIFEST.json", "lost+found/x"):
        assert isinstance(store.create(path, b"x"), Done)
    for path in reachable_root.rglob("*"):
        path.chmod(0o777)
    # The second is none of the store's: there may be one at the root of a file system.
    for folder in ("b", "lost+found"):
        (reachable_root / folder).chmod(0)

    with child(ask_as_nobody, reachable_root.as_uri()) as (_, connection):
        found = answer(connection)

    assert isinstance(found, dict)
    for name in ASKED.keys() - FINE.keys():
        assert found[name][0] is StoreDeniedError, name
        assert f"Permission denied: '{reachable_root}/b/" in found[name][1]
        assert found[name][1].endswith("give this user access")
    assert {name: found[name] for name in FINE} == FINE


def ask_without_files(connection: Connection, root: Path) -> None:
    store = with_retries(LocalStore(root), shared_runtime(), RetryOptions(attempts_max=1))
    asked(store)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
    connection.send(asked(store))


def test_process_without_a_file_handle_left_finds_nothing_missing(tmp_path: Path) -> None:
    """A list of logs was once shorter then."""
    store = LocalStore(tmp_path)
    for path in ("a/manifest/MANIFEST.json", "b/manifest/MANIFEST.json", "lost+found/x"):
        assert isinstance(store.create(path, b"x"), Done)

    with child(ask_without_files, tmp_path) as (_, connection):
        found = answer(connection)

    assert isinstance(found, dict)
    # A head opens nothing.
    for name in ASKED.keys() - {"head"}:
        assert found[name][0] is UnavailableError, name
        assert "Too many open files" in found[name][1]
        assert "raise their limit (ulimit -n)" in found[name][1]


@pytest.mark.parametrize(
    "prefix",
    ["..", "../b", "orders/..", "./", ".", "a b", "orders//x", "orders\0x", "orders\nx", "orders/log", "x" * 600],
)
def test_prefix_that_no_log_s_name_can_have_is_refused_before_any_request(prefix: str) -> None:
    """It once led out of the store."""
    with pytest.raises(InvalidRequestError, match="prefix name"):
        list_logs(open_store("memory:"), prefix)


def test_prefix_does_not_lead_into_another_store(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert isinstance(LocalStore(tmp_path / name).create(f"orders/{MANIFEST}", b"x"), Done)
    store = LocalStore(tmp_path / "one")

    assert list(list_logs(store, "orders/")) == ["orders"]
    with pytest.raises(AssertionError, match="expected relative parts"):
        store.list_folders("../two/")


@pytest.mark.parametrize("link", ["life/cursor", "life/cursor/c.json"])
def test_link_to_nothing_is_an_error_and_not_a_log_without_cursors(tmp_path: Path, link: str) -> None:
    """What it leads to may be on a file system that is not mounted: a collection would delete what its cursors keep."""
    store = LocalStore(tmp_path / "store")
    assert isinstance(store.create("life/cursor/c.json", b"x"), Done)
    place = tmp_path / "store" / link
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert [meta.path for meta in store.list_objects("life/cursor/")] == ["life/cursor/c.json"]

    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")

    with pytest.raises(UnavailableError, match=f"expected .*/{link} to lead .*, found a link to nothing"):
        list(store.list_objects("life/cursor/"))
