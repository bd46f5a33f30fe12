"""The names that ``wal3_core`` exports."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import wal3_core


def test_each_name_is_the_same_object_for_type_checkers_and_at_run_time() -> None:
    tree = ast.parse(Path(str(wal3_core.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
    seen_by_checkers = {
        alias.name: node.module
        for node in imports
        if node.module and node.module.startswith("wal3_core.")
        for alias in node.names
    }

    assert sorted(wal3_core.__all__) == list(wal3_core.__all__) == sorted(seen_by_checkers)
    for name, module in seen_by_checkers.items():
        assert getattr(wal3_core, name) is getattr(import_module(str(module)), name)
        assert name in dir(wal3_core)


def test_version_is_the_installed_package_s() -> None:
    assert wal3_core.__version__ == version("wal3")
    assert "__version__" in dir(wal3_core)


def test_module_shows_no_names_but_the_exported_and_its_parts() -> None:
    shown = {name for name in dir(wal3_core) if not name.startswith("_")}

    parts = {path.stem for path in Path(str(wal3_core.__file__)).parent.iterdir()}
    assert shown - parts <= set(wal3_core.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'wal3_core' has no attribute 'Nothing'"):
        _ = wal3_core.Nothing
