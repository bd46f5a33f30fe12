"""The mutations themselves: they take hold everywhere, leave no trace, and never miss in silence."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations import Mutation, StaleMutationError, applied, replaced
from wal3_core.store.backends.local import LocalStore, _etag
from wal3_core.store.object_store import FolderStore, check_path

TESTS = Path(__file__).parent
ETAG = Mutation("etag of nothing", "_etag", "hashlib.sha256(_)", "hashlib.sha256(b'')")
# Each with what stands there before, the pattern, the replacement and what stands there afterwards.
REPLACED = {
    "formatting": ("f(a,  # why\n  'b')", 'f(a, "b")', "g()", "g()"),
    "a part of an expression": ("x = not f(a) + 1", "f(a)", "b", "x = not b + 1"),
    "an expression in place of a statement": ("f(a)", "f(_1)", "g(_1)", "g(a)"),
    "a statement that goes": ("f()\ng()", "f()", "", "g()"),
    "the last statement of a block": ("if a:\n    f()", "f()", "", "if a:\n    pass"),
    "two statements that change places": ("f(1)\ng(2)", "f(_1)\ng(_2)", "g(_2)\nf(_1)", "g(2)\nf(1)"),
    "a statement of any kind": ("f()\ng()\nx = 1", "_1\nx = 1", "x = 1\n_1", "f()\nx = 1\ng()"),
    "an expression that is the same twice": ("x = [a.b < a.b, a.b < c.b]", "_1 < _1", "_1", "x = [a.b, a.b < c.b]"),
    "a name of an attribute": ("x.queue.put(a)", "x._.put(_1)", "x.drop(_1)", "x.drop(a)"),
    "a name that is set": ("for a in b: f(a)", "for _1 in b: ...", "for _1 in (): ...", "for a in ():\n    f(a)"),
    "any arguments": ("f(a, *b, c=1, d=2)", "f(..., c=1)", "g(..., c=3)", "g(a, *b, d=2, c=3)"),
    "no arguments": ("f()", "f(...)", "g(1, ...)", "g(1)"),
    "arguments in another order": ("f(b=1, a=2)", "f(a=_1, b=_2)", "f(_1, _2)", "f(2, 1)"),
    "any elements": ("x = [1, 2, 3]", "[1, ...]", "[..., 4]", "x = [2, 3, 4]"),
    "any statements": ("if a:\n    f()\n    g()", "if a: ...", "while a: ...", "while a:\n    f()\n    g()"),
    "the end of a block": ("f()\ng()\nh()", "g()\n...", "...", "f()\nh()"),
    "operands": ("x = a and b and c and d", "_1 and d", "_1 or d", "x = a and b and c or d"),
    "operands in the middle": ("x = a or b or c or d", "a or _1 or d", "_1", "x = b or c"),
}  # fmt: skip


def tables() -> Iterator[Mutation]:
    """Yield what the tests keep in their modules, wherever they are kept."""
    for path in sorted(TESTS.rglob("*.py")):
        if "Mutation(" in path.read_text() and path.parent != TESTS:
            module = importlib.import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))
            yield from found_in(list(vars(module).values()))


def found_in(value: object) -> Iterator[Mutation]:
    if isinstance(value, Mutation):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from found_in(each)


@pytest.mark.slow
def test_every_mutation_of_every_table_applies() -> None:
    stale, count = [], 0
    for mutation in dict.fromkeys(tables()):
        try:
            with applied(mutation):
                count += 1
        except StaleMutationError as error:
            stale.append(str(error))

    assert not stale, "\n".join(stale)
    assert count > 200


@pytest.mark.slow
def test_page_on_reliability_says_how_many_there_are() -> None:
    page = (TESTS.parent / "docs" / "reliability.md").read_text()

    assert f"keep {len({*tables()})} deliberate defects" in page


@pytest.mark.parametrize("case", REPLACED)
def test_pattern_fits_the_syntax_tree_whatever_its_wildcards_stand_for(case: str) -> None:
    before, pattern, replacement, after = REPLACED[case]
    tree = ast.parse(before)

    assert replaced(tree, pattern, replacement) == 1
    assert ast.unparse(tree) == after


@pytest.mark.parametrize(
    ("code", "pattern", "count"),
    [
        ("f(a)\nf(b)", "f(_)", 2),
        ("f(a)", "f(b)", 0),
        ("f(a, b)", "f(_)", 0),
        ("f(a, b=1)", "f(_)", 0),
        ("x = True", "x = 1", 0),
        ("f()\nh()\ng()", "f()\ng()", 0),
        ("if a: f()\nelse: g()", "if a: ...", 0),
        ("x = a and b or c", "a and c", 0),
    ],
)
def test_code_stays_as_it_is_unless_the_pattern_fits_once(code: str, pattern: str, count: int) -> None:
    tree = ast.parse(code)

    assert replaced(tree, pattern, "pass") == count
    assert ast.unparse(tree) == ast.unparse(ast.parse(code))


def test_mutation_reaches_whoever_imported_the_function_and_is_gone_afterwards() -> None:
    sound = _etag(b"bytes")

    with applied(ETAG):
        mutated = _etag(b"bytes")
        assert mutated == _etag(b"others")

    assert mutated != sound
    assert _etag(b"bytes") == sound


def test_mutation_reaches_methods_properties_and_context_managers() -> None:
    url = Mutation("no URL", "FolderStore.url", "_.split(...)", "['nowhere']")
    locked = Mutation("no lock", "LocalStore._locked", "fcntl.LOCK_EX", "fcntl.LOCK_NB")
    path = Mutation("any path", "check_path", "return path", "return path + '?'")

    with applied(url), applied(locked), applied(path):
        assert FolderStore(LocalStore(Path("/")), "a/").url == "nowhere/a"
        assert check_path("a") == "a?"

    assert check_path("a") == "a"


@pytest.mark.parametrize(
    ("mutation", "expected"),
    [
        (Mutation("m", "_etag", "sha512(_)", "sha256(_)"), "once, found it 0 times"),
        (Mutation("m", "_etag", "_._", "data"), "once, found it [2-9] times in wal3_core.store.backends.local:_etag"),
        (Mutation("m", "_etag", "hashlib.sha256", "hashlib .sha256"), "found none"),
        (Mutation("m", "_no_such", "data", "b''"), "found nothing of that name"),
        (Mutation("m", "NoSuch._locked", "data", "b''"), "there are .*local:LocalStore._locked"),
        (Mutation("m", "LocalStore", "data", "b''"), "a function, found type"),
        (Mutation("m", "_etag", "hashlib.sha256(_1)", "_no_such(_1)"), "found _no_such"),
        (Mutation("m", "_etag", "hashlib.sha256(_)", "hashlib.sha1(_)"), "found _:"),
        (Mutation("m", "LocalStore.url", "self._root.as_uri", "self._no_such.as_uri"), "found self._no_such"),
        (Mutation("m", "LocalStore._locked", "contextlib.contextmanager", "contextlib.suppress"), "found it 0 times"),
    ],
)
def test_mutation_that_does_not_fit_is_refused(mutation: Mutation, expected: str) -> None:
    with pytest.raises(StaleMutationError, match=expected), applied(mutation):
        raise AssertionError
