"""Defects put into the library on purpose, to see that a test finds them.

A mutation that no longer applies is an error, so a checker cannot go blind as the code changes.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import dis
import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Mutation:
    """One snippet of one function's source, and what takes its place.

    ``target`` is ``package.module:function`` or ``package.module:Class.function``; snippets are
    written as they stand in the file, with its indentation where they have more than one line.
    """

    name: str
    target: str
    before: str
    after: str


class StaleMutationError(Exception):
    """The mutation does not fit the code any more: rewrite it for the present code."""


@contextlib.contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Let the library run with the defect until the block ends.

    The function keeps its identity and changes its code, so every module that imported it by name has the defect too.
    """
    function = _function(mutation)
    mutant = _mutant(mutation, function)
    kept = function.__code__, function.__defaults__, function.__kwdefaults__
    try:
        function.__code__ = mutant.__code__
    except ValueError as error:
        raise _stale(mutation, f"a function whose closure stays as it is ({error})") from error
    function.__defaults__, function.__kwdefaults__ = mutant.__defaults__, mutant.__kwdefaults__
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = kept


def _stale(mutation: Mutation, expected: str) -> StaleMutationError:
    return StaleMutationError(f"mutation {mutation.name!r} of {mutation.target}: expected {expected}")


def _function(mutation: Mutation) -> FunctionType:
    module, _, names = mutation.target.partition(":")
    found: object = importlib.import_module(module)
    for name in names.split("."):
        if name not in vars(found):
            raise _stale(mutation, f"{name!r} to be defined there, found nothing of that name")
        found = vars(found)[name]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise _stale(mutation, f"a function, found {type(found).__name__}")
    return found


def _mutant(mutation: Mutation, function: FunctionType) -> FunctionType:
    source = inspect.getsource(function)
    count = source.count(mutation.before)
    if count != 1:
        raise _stale(mutation, f"{mutation.before!r} once, found it {count} times")
    original = _definition(source)
    changed = _definition(source.replace(mutation.before, mutation.after))
    if ast.dump(original) == ast.dump(changed):
        raise _stale(mutation, "a change of what runs, found none")
    if [ast.dump(each) for each in original.decorator_list] != [ast.dump(each) for each in changed.decorator_list]:
        raise _stale(mutation, "decorators to stay as they are: a replaced body cannot change them")
    changed.decorator_list = []
    ast.increment_lineno(changed, function.__code__.co_firstlineno - 1)
    code = compile(
        ast.Module([changed], []),
        function.__code__.co_filename,
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    names: dict[str, object] = {}
    exec(code, function.__globals__, names)
    mutant = names[function.__name__]
    assert isinstance(mutant, FunctionType)
    missing = [*_undefined_names(mutant), *_undefined_attributes(mutation, changed)]
    if missing:
        raise _stale(
            mutation, f"names that exist, found {', '.join(missing)}: it would be found by an error of its own"
        )
    return mutant


def _undefined_names(mutant: FunctionType) -> list[str]:
    read = {step.argval for step in dis.get_instructions(mutant) if step.opname == "LOAD_GLOBAL"}
    return sorted(read - mutant.__globals__.keys() - vars(builtins).keys())


def _undefined_attributes(mutation: Mutation, changed: ast.FunctionDef) -> list[str]:
    """Name the attributes of ``self`` that its class never defines."""
    module, _, names = mutation.target.partition(":")
    if "." not in names:
        return []
    defining = vars(importlib.import_module(module))[names.split(".")[0]]
    sources = "".join(inspect.getsource(each) for each in defining.__mro__ if each.__module__.startswith("wal3_core"))
    read = {node.attr for node in ast.walk(changed) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    return sorted(
        f"self.{name}"
        for name in read
        if not hasattr(defining, name) and not re.search(rf"\bself\.{name}\b[^=\n]*=[^=]", sources)
    )


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _definition(source: str) -> ast.FunctionDef:
    node = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node
