"""Public signatures name only types that ``wal3_core`` exports."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Iterator
from types import ModuleType

import pytest

import wal3_core
from tests.exported import IN_SIGNATURES

# Conversions to and from stored bytes, which the library calls.
CODEC = {"to_json", "from_json", "from_fields", "to_bytes", "from_bytes"}
# Made by their class methods alone.
OPENED = {
    *("FeedReader", "FeedSubscription", "FeedWriter", "DirtyLog", "Fleet", "LogReader", "LogWriter"),
    *("KeyedConsumer", "KeyedLog", "KeyedScan"),
}


def names_in(module: ModuleType) -> dict[str, object]:
    """The names that a module's annotations can use: its own, and those imported for type checkers."""
    names = dict(vars(module))
    blocks = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    for block in blocks:
        if ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wal3_core"):
                    # Aliases of types may exist for type checkers only; they are no classes.
                    found = importlib.import_module(str(node.module))
                    names |= {alias.name: getattr(found, alias.name, object) for alias in node.names}
                elif isinstance(node, ast.ImportFrom | ast.Import | ast.Assign):
                    exec(ast.unparse(node), names)
    return names


def classes_of(annotation: object, names: dict[str, object]) -> Iterator[type]:
    if isinstance(annotation, str):
        annotation = eval(annotation, names)
    if typing.get_origin(annotation) is typing.Literal:
        return
    if isinstance(annotation, list | tuple):
        parts: tuple[object, ...] = tuple(annotation)
    else:
        parts = (*filter(None, [typing.get_origin(annotation)]), *typing.get_args(annotation))
    for part in parts:
        yield from classes_of(part, names)
    if not parts and isinstance(annotation, type):
        yield annotation


def annotations_of(name: str, found: object) -> Iterator[tuple[str, object, dict[str, object]]]:
    """Yield the annotations of a public function, or of a class's public fields and methods."""
    if inspect.isclass(found):
        names = names_in(sys.modules[found.__module__])
        fields = inspect.get_annotations(found)
        yield from ((f"{name}.{field}", each, names) for field, each in fields.items() if not field.startswith("_"))
        for method, member in vars(found).items():
            made = method == "__init__" and not dataclasses.is_dataclass(found) and name not in OPENED
            if (made or not method.startswith("_")) and method not in CODEC:
                function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                if inspect.isfunction(function):
                    yield from annotations_of(f"{name}.{method}", function)
    elif callable(found):
        function = inspect.unwrap(found)
        names = names_in(sys.modules[function.__module__])
        yield from ((f"{name}({each})", annotation, names) for each, annotation in function.__annotations__.items())


@pytest.mark.slow
def test_each_class_in_a_public_signature_is_exported() -> None:
    exported = {getattr(wal3_core, name) for name in wal3_core.__all__}
    missing = [
        f"{place}: {kind.__module__}.{kind.__qualname__}"
        for name in sorted({*wal3_core.__all__} - IN_SIGNATURES)
        for place, annotation, names in annotations_of(name, getattr(wal3_core, name))
        for kind in classes_of(annotation, names)
        if kind.__module__.startswith("wal3_core") and kind not in exported
    ]

    assert missing == []


def test_each_name_that_is_exported_for_signatures_is_exported() -> None:
    assert set(wal3_core.__all__) >= IN_SIGNATURES
