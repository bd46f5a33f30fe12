"""Defects put into the library on purpose, to see that a test finds them.

A mutation that no longer applies is an error, so a checker cannot go blind as the code changes. What is replaced and
its replacement are plain Python: an expression fits expressions, statements fit as many statements in a row. How they
are written does not matter, and wildcards stand for what does not matter either:

- ``_`` for one expression, one name of an argument or attribute, or, on a line of its own, one statement;
- ``_1``, ``_2`` and so on for the same, which the replacement keeps: ``_1 and ready`` becomes ``_1``;
- ``...`` for any number of arguments, elements or statements, which the replacement keeps where it has ``...`` as well:
  ``if ready: ...`` becomes ``if True: ...``.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import copy
import difflib
import dis
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import wal3_core

if TYPE_CHECKING:
    Put = Callable[[list[ast.AST]], None]

PACKAGE = Path(wal3_core.__file__).parent
# Fields of nodes that say how an expression is written, or that follow from its place.
_IGNORED = {"ctx", "kind", "type_comment"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One place in the syntax tree of one function, and what takes its place: nothing, when that is left out.

    ``target`` is ``function`` or ``Class.function``, in whatever module. ``before`` and ``after`` are Python, with
    wildcards; ``before`` fits once in all functions that are named so.
    """

    name: str
    target: str
    before: str
    after: str = ""


class StaleMutationError(Exception):
    """The mutation does not fit the code any more: rewrite it for the present code."""


@contextlib.contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """Let the library run with the defect until the block ends.

    The function keeps its identity and changes its code, so every module that imported it by name has the defect too.
    """
    function, changed = mutated(mutation)
    mutant = _mutant(mutation, function, changed)
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


def mutated(mutation: Mutation) -> tuple[FunctionType, ast.FunctionDef]:
    """Return the target and its definition with the defect, without decorators: a replaced body cannot change them."""
    counts = {}
    for function in _functions(mutation):
        changed = _definition(function)
        count = replaced(changed, textwrap.dedent(mutation.before), textwrap.dedent(mutation.after))
        if count:
            counts[f"{function.__module__}:{function.__qualname__}"] = count, function, changed
    if sum(count for count, *_ in counts.values()) != 1:
        found = ", ".join(f"{count} times in {place}" for place, (count, *_) in counts.items()) or "0 times"
        raise _stale(mutation, f"{mutation.before!r} once, found it {found}")
    ((_, function, changed),) = counts.values()
    if ast.dump(_definition(function)) == ast.dump(changed):
        raise _stale(mutation, "a change of what runs, found none")
    return function, changed


def _stale(mutation: Mutation, expected: str) -> StaleMutationError:
    return StaleMutationError(f"mutation {mutation.name!r} of {mutation.target}: expected {expected}")


def _functions(mutation: Mutation) -> list[FunctionType]:
    """Return the functions that are named so."""
    first, *rest = mutation.target.split(".")
    found: list[object] = [vars(importlib.import_module(module))[first] for module in _defining().get(first, ())]
    for name in rest:
        found = [vars(each)[name] for each in found if name in vars(each)]
    if not found:
        raise _stale(mutation, f"it to be defined, found {_candidates(mutation.target)}")
    return [_function(mutation, each) for each in found]


def _function(mutation: Mutation, found: object) -> FunctionType:
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    if not isinstance(found, FunctionType):
        raise _stale(mutation, f"a function, found {type(found).__name__}")
    return found


@cache
def _sources() -> dict[str, str]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def _defining() -> dict[str, list[str]]:
    """Return the modules that define each class and function."""
    modules: dict[str, list[str]] = {}
    for module, source in _sources().items():
        for name in re.findall(r"^(?:class|def) (\w+)", source, re.MULTILINE):
            modules.setdefault(name, []).append(module)
    return modules


def _candidates(target: str) -> str:
    """Say what else is named so: functions of other classes, or what sounds like it."""
    name = target.rpartition(".")[2]
    near = set(difflib.get_close_matches(name, _defining(), n=5))
    for module, source in _sources().items():
        owner = ""
        for line in re.findall(rf"^(?:class \w+|    def {name}\b)", source, re.MULTILINE):
            if line.startswith("class"):
                owner = line.removeprefix("class ")
            else:
                near.add(f"{module}:{owner}.{name}")
    return "nothing of that name" + (f"; there are {', '.join(sorted(near))}" if near else "")


def _mutant(mutation: Mutation, function: FunctionType, changed: ast.FunctionDef) -> FunctionType:
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
    missing = [*_undefined_names(mutant), *_undefined_attributes(function, changed)]
    if missing:
        raise _stale(
            mutation, f"names that exist, found {', '.join(missing)}: it would be found by an error of its own"
        )
    return mutant


def _undefined_names(mutant: FunctionType) -> list[str]:
    read = {step.argval for step in dis.get_instructions(mutant) if step.opname == "LOAD_GLOBAL"}
    return sorted(read - mutant.__globals__.keys() - vars(builtins).keys())


def _undefined_attributes(function: FunctionType, changed: ast.FunctionDef) -> list[str]:
    """Name the attributes of ``self`` that its class never defines."""
    if "." not in function.__qualname__:
        return []
    defining = function.__globals__[function.__qualname__.split(".")[0]]
    sources = _source_of(defining)
    read = {node.attr for node in ast.walk(changed) if isinstance(node, ast.Attribute) and _is_self(node.value)}
    return sorted(
        f"self.{name}"
        for name in read
        if not hasattr(defining, name) and not re.search(rf"\bself\.{name}\b[^=\n]*=[^=]", sources)
    )


@cache
def _source_of(defining: type) -> str:
    return "".join(inspect.getsource(each) for each in defining.__mro__ if each.__module__.startswith("wal3_core"))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _definition(function: FunctionType) -> ast.FunctionDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    return node


def replaced(tree: ast.AST, before: str, after: str) -> int:
    """Replace the one place that fits, and return how many fit: the tree stays as it is if that is not one."""
    patterns, replacements = ast.parse(before).body, ast.parse(after).body
    pattern, replacement = patterns[0], replacements[0] if replacements else None
    places: list[tuple[_Fit, Put]]
    if len(patterns) == len(replacements) == 1 and isinstance(pattern, ast.Expr) and isinstance(replacement, ast.Expr):
        news: list[ast.AST] = [replacement.value]
        places = list(_expressions(tree, pattern.value))
    else:
        news = list(replacements)
        places = list(_statements(tree, patterns))
    if len(places) == 1:
        fit, put = places[0]
        put(fit.filled(news))
    return len(places)


def _expressions(tree: ast.AST, pattern: ast.expr) -> Iterator[tuple[_Fit, Put]]:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            nodes = value if isinstance(value, list) else [value]
            for at, node in enumerate(nodes):
                fit = _Fit(node)
                if isinstance(node, ast.expr) and fit.fits(pattern, node):
                    yield fit, _putting(parent, name, at, at + 1)


def _statements(tree: ast.AST, patterns: list[ast.stmt]) -> Iterator[tuple[_Fit, Put]]:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if not isinstance(value, list) or not value or not isinstance(value[0], ast.stmt):
                continue
            starts = range(1 if _is_rest(patterns[0]) else len(value))
            for start in starts:
                first = len(value) if _is_rest(patterns[-1]) else start + 1
                for end in range(first, len(value) + 1):
                    fit = _Fit(value[start])
                    if fit.fits(patterns, value[start:end]):
                        yield fit, _putting(parent, name, start, end)


def _putting(parent: ast.AST, name: str, start: int, end: int) -> Put:
    def put(news: list[ast.AST]) -> None:
        value = getattr(parent, name)
        if isinstance(value, list):
            value[start:end] = news
            if not value and name == "body":
                value.append(ast.copy_location(ast.Pass(), parent))
        else:
            setattr(parent, name, news[0])

    return put


@dataclass(slots=True)
class _Fit:
    """What the wildcards of a pattern stand for at one place."""

    place: ast.AST
    named: dict[str, ast.AST] = field(default_factory=dict)
    rests: list[list[ast.AST]] = field(default_factory=list)

    def fits(self, pattern: object, found: object) -> bool:
        """Return whether what is found is what the pattern says."""
        if isinstance(pattern, list):
            return isinstance(found, list) and self._all_fit(pattern, found)
        if isinstance(pattern, ast.AST) and isinstance(found, ast.AST):
            name = _wildcard(pattern)
            if name is not None and isinstance(found, ast.stmt if isinstance(pattern, ast.Expr) else ast.expr):
                return name == "_" or self.fits(self.named.setdefault(name, found), found)
            return type(pattern) is type(found) and self._fields_fit(pattern, found)
        return (pattern == found and type(pattern) is type(found)) or (pattern == "_" and isinstance(found, str))

    def _fields_fit(self, pattern: ast.AST, found: ast.AST) -> bool:
        if isinstance(pattern, ast.Call) and isinstance(found, ast.Call):
            return self.fits(pattern.func, found.func) and self._all_fit(*_arguments(pattern, found))
        if isinstance(pattern, ast.BoolOp) and isinstance(found, ast.BoolOp):
            return self.fits(pattern.op, found.op) and self._all_fit([*pattern.values], _operands(pattern, found))
        if isinstance(pattern, ast.Constant) and isinstance(found, ast.Constant):
            return repr(pattern.value) == repr(found.value)
        return all(
            self.fits(getattr(pattern, each), getattr(found, each)) for each in pattern._fields if each not in _IGNORED
        )

    def _all_fit(self, patterns: list[ast.AST], found: list[ast.AST]) -> bool:
        if not patterns:
            return not found
        if not _is_rest(patterns[0]):
            return bool(found) and self.fits(patterns[0], found[0]) and self._all_fit(patterns[1:], found[1:])
        named, rests = self.named, self.rests
        for count in range(len(found) + 1):
            self.named, self.rests = dict(named), [*rests, found[:count]]
            if self._all_fit(patterns[1:], found[count:]):
                return True
        return False

    def filled(self, news: list[ast.AST]) -> list[ast.AST]:
        """Return the replacement, with what the wildcards stand for in their places."""
        for new in news:
            for node in ast.walk(new):
                if hasattr(node, "lineno"):
                    ast.copy_location(node, self.place)
        filling = _Filling(self)
        results = [filling.visit(new) for new in news]
        return [node for each in results for node in (each if isinstance(each, list) else [each])]


class _Filling(ast.NodeTransformer):
    def __init__(self, fit: _Fit) -> None:
        self._named = fit.named
        self._rests = iter(fit.rests)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._named:
            return node
        found = copy.deepcopy(self._named[node.id])
        if hasattr(found, "ctx"):
            found.ctx = node.ctx
        return found

    def visit_Expr(self, node: ast.Expr) -> ast.AST | list[ast.AST]:
        value = self.visit(node.value)
        if isinstance(value, list | ast.stmt):
            return value
        node.value = value
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST | list[ast.AST]:
        return next(self._rests, [node]) if _is_rest(node) else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        given = [*node.args, *node.keywords]
        node.args = [each for each in given if isinstance(each, ast.expr)]
        node.keywords = [each for each in given if isinstance(each, ast.keyword)]
        return node


def _arguments(pattern: ast.Call, found: ast.Call) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return the arguments of both with keywords in the pattern's order, behind those that it does not name."""
    names = [each.arg for each in pattern.keywords]
    others = [each for each in found.keywords if each.arg not in names]
    named = [each for each in found.keywords if each.arg in names]
    named.sort(key=lambda each: names.index(each.arg))
    return [*pattern.args, *pattern.keywords], [*found.args, *others, *named]


def _operands(pattern: ast.BoolOp, found: ast.BoolOp) -> list[ast.AST]:
    """Return as many operands as the pattern has: its first wildcard stands for those that are too many."""
    surplus = len(found.values) - len(pattern.values)
    at = next((at for at, value in enumerate(pattern.values) if _wildcard(value)), None)
    if surplus <= 0 or at is None:
        return [*found.values]
    joined = ast.copy_location(ast.BoolOp(found.op, found.values[at : at + surplus + 1]), found)
    return [*found.values[:at], joined, *found.values[at + surplus + 1 :]]


def _wildcard(pattern: ast.AST) -> str | None:
    node = pattern.value if isinstance(pattern, ast.Expr) else pattern
    return node.id if isinstance(node, ast.Name) and re.fullmatch(r"_\d*", node.id) else None


def _is_rest(pattern: ast.AST) -> bool:
    node = pattern.value if isinstance(pattern, ast.Expr) else pattern
    return isinstance(node, ast.Constant) and node.value is ...
