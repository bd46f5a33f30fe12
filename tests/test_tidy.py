"""The house style that linters do not know."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for folder in ("wal3_core", "wal3_orchestration") for path in (ROOT / folder).rglob("*.py"))
BESIDE = ("tests", "benchmarks", "examples")
EVERYTHING = [*SOURCES, *(path for folder in BESIDE for path in sorted((ROOT / folder).rglob("*.py")))]
MODULE_LINES_MAX = 800
TEST_MODULE_LINES_MAX = 500
CLASS_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
TEST_NAME_LENGTH_MAX = 80
BANNED_NAMES = {"utils", "helpers", "common", "manager", "data", "info", "misc"}
DATACLASS_FLAGS = {"frozen", "slots"}
# Values with an identity that a state machine changes as it goes, and sums that grow.
MUTABLE = {"Append", "InFlightFragment", "ReadSums", "Slot", "Use", "_CheckedLog", "_Lane", "_Tally"}
# In one worker: each file is parsed once.
pytestmark = pytest.mark.xdist_group("tidy")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = parsed(path)
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_module_its_classes_and_functions_stay_short() -> None:
    for path in EVERYTHING:
        count, count_max = (
            len(path.read_text().splitlines()),
            MODULE_LINES_MAX if path in SOURCES else TEST_MODULE_LINES_MAX,
        )
        assert count <= count_max, f"{path}: {count} lines"
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                lines_max = CLASS_LINES_MAX if isinstance(node, ast.ClassDef) else FUNCTION_LINES_MAX
                assert lines <= lines_max, f"{path}:{node.name}: {lines} lines"


def test_name_of_a_test_is_a_short_claim() -> None:
    for path in EVERYTHING:
        for function in functions(path):
            if function.name.startswith("test_"):
                assert len(function.name) <= TEST_NAME_LENGTH_MAX, f"{path}:{function.name}: {len(function.name)}"


def test_each_exception_to_a_rule_has_its_reason_beside_it() -> None:
    bare = re.compile(r"# (noqa(: [A-Z0-9, ]+)?|type: ignore(\[[a-z, -]+\])?) *$", re.MULTILINE)
    for path in EVERYTHING:
        text = path.read_text()
        assert [text.count("\n", 0, each.start()) + 1 for each in bare.finditer(text)] == [], (
            f"{path}: without a reason"
        )


def test_module_says_what_it_is_and_is_named_for_it() -> None:
    for path in SOURCES:
        tree = parsed(path)

        assert ast.get_docstring(tree), f"{path} has no docstring"
        assert path.stem not in BANNED_NAMES, path


def test_functions_take_few_parameters_and_no_more_than_two_by_place_alone() -> None:
    for path in SOURCES:
        for function in functions(path):
            arguments = function.args
            count = (
                len(arguments.args)
                + len(arguments.kwonlyargs)
                - (arguments.args[:1] != [] and arguments.args[0].arg in {"self", "cls"})
            )
            decorated = any(
                "click" in ast.unparse(node) or "command" in ast.unparse(node) for node in function.decorator_list
            )
            assert decorated or count <= PARAMETERS_MAX + 1, f"{path}:{function.name}: {count} parameters"


def test_dataclasses_of_the_core_are_frozen_and_slotted() -> None:
    for path in sorted((ROOT / "wal3_core").rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.ClassDef) or node.name in MUTABLE:
                continue
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
                    flags = {keyword.arg for keyword in decorator.keywords if ast.unparse(keyword.value) == "True"}
                    assert flags >= DATACLASS_FLAGS, f"{path}:{node.name}"


def test_python_code_holds_no_pickle_and_no_bare_except() -> None:
    for path in SOURCES:
        tree = parsed(path)
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), path
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("pickle") for a in node.names)), path


# One plain term for one thing: each word here, and what to write.
DIALECT = {
    "can not": "cannot",
    "told": "said, reported, answered",
    "tell of": "report",
    "tells of": "reports",
    "anew": "again",
    "mend": "fix",
    "mended": "fixed",
    "whoever": "a process that",
    "nobody": "no process",
    "somebody": "another process",
    "lest": "so that not",
    "nothing but": "only",
    "be it": "whether",
    "may go": "can be deleted",
    "condemned": "marked for deletion",
    "settle": "resume, resolve, recheck",
    "settled": "resumed, resolved, rechecked",
}
TEXTS = sorted(
    path
    for pattern in ("*.md", "*.toml", "Makefile", "docs/**/*.md", "tests/**/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)


def test_text_is_plain_english() -> None:
    for path in [*EVERYTHING, *TEXTS]:
        text = path.read_text() if path != Path(__file__) else ""

        for match in re.finditer(rf"\b({'|'.join(DIALECT)})\b", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            pytest.fail(f"{path}:{line}: expected {DIALECT[match[0].lower()]!r}, found {match[0]!r}")


# Words that names do not have, whole or between underscores and capitals.
PRIVATE_WORDS = re.compile(
    r"(?<![a-z])(anew|breath|looked|looking|mend|mended|nobody|reseals?|settled?|somebody|standing|stretch|tell|telling"
    r"|told|vigil)(?![a-z])"
)
SPOKEN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def test_names_are_plain_english() -> None:
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                    pass
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    pass
                case _:
                    continue
            found = PRIVATE_WORDS.search(SPOKEN.sub("_", name).lower())
            assert found is None, f"{path}: {name}: expected the field's word, found {found and found[0]!r}"


STARTS = {"run", "call", "check_call", "check_output"}
WAITS = {"wait", "join", "communicate"}


def test_every_wait_for_a_process_in_tests_has_a_deadline() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            starts = ast.unparse(node.func.value) == "subprocess" and node.func.attr in STARTS
            waits = node.func.attr == "communicate" or (node.func.attr in WAITS and not node.args)
            named = {keyword.arg for keyword in node.keywords}
            assert "timeout" in named or not (starts or waits), f"{path}:{node.lineno}: {ast.unparse(node)[:80]}"


PROTOCOL = [ROOT / "docs" / "protocol.md", *sorted((ROOT / "docs" / "protocol").glob("*.md"))]
INVARIANTS_MIN = 53


def test_documents_name_every_invariant_and_each_has_a_test() -> None:
    stated = [
        (line, path) for path in PROTOCOL for line in path.read_text().splitlines() if line.startswith("- **INV-")
    ]
    tests = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_tidy.py"}

    numbers = sorted(int(line.split("**")[1].removeprefix("INV-")) for line, _ in stated)
    assert len(numbers) >= INVARIANTS_MIN
    assert numbers == list(range(1, len(numbers) + 1)), "each number stands once"
    for line, path in stated:
        invariant = line.split("**")[1]
        named = [
            name.strip("`")
            for name in line.split("Tests:")[1].replace(".", " ").replace(",", " ").split()
            if name.startswith("`test_")
        ]
        assert named, f"{path}: {invariant} names no test"
        for name in named:
            assert any(f"def {name}(" in text for text in tests.values()), f"{invariant}: no test {name}"


def test_first_page_of_the_protocol_says_on_which_page_each_invariant_stands() -> None:
    shown = {}
    for ranges, target in re.findall(r"\| \[([0-9, to]+)\]\((\S*)#invariants\) \|", PROTOCOL[0].read_text()):
        for bounds in (part.split(" to ") for part in ranges.split(", ")):
            page = ROOT / "docs" / (target or "protocol.md")
            shown |= dict.fromkeys(range(int(bounds[0]), int(bounds[-1]) + 1), page)

    number = re.compile(r"^- \*\*INV-(\d+)", re.MULTILINE)
    stated = {int(found): path for path in PROTOCOL for found in number.findall(path.read_text())}
    assert shown == stated


def test_docstrings_name_sections_that_the_documents_have() -> None:
    for path in EVERYTHING:
        for page, section in re.findall(r'(docs/[\w/-]+\.md),\s+"([^"]+)"', path.read_text()):
            headings = {line.lstrip("# ") for line in (ROOT / page).read_text().splitlines() if line.startswith("#")}
            assert " ".join(section.split()) in headings, f"{path}: {page}, {section!r}"
