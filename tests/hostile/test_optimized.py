"""``python -O`` drops every assert: no check on outside bytes is one. And no stored bytes are ever executed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CORE = sorted((ROOT / "wal3_core").rglob("*.py"))
# Each turns bytes into code, or into objects of any class.
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "code", "runpy", "yaml", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "loads_pickle"}
FILES = (
    "tests/hostile/test_documents.py",
    "tests/hostile/test_parquet_fuzz.py",
    "tests/hostile/test_schemas.py",
    "tests/format",
    "tests/spec/append/test_create.py",
    "tests/spec/read/test_read.py",
    "tests/spec/cursors/test_cursors.py",
    "tests/spec/damage/test_scrub.py",
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=600
    )


def optimized(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run tests under -O. Pytest rewrites the asserts of tests and plugins, so they stay; the library's are dropped."""
    plugins = ("-p", "no:cacheprovider")
    return run("-O", "-m", "pytest", "-q", *plugins, "-k", "not s3 and not local", *arguments)


@pytest.mark.repeat
def test_failing_test_fails_under_optimization_too(tmp_path: Path) -> None:
    """Otherwise the next test would prove nothing."""
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert not __debug__\n    assert False\n")

    ended = optimized("--rootdir", str(tmp_path), str(tmp_path))

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "assert False" in ended.stdout


@pytest.mark.slow
@pytest.mark.repeat
def test_damage_is_an_error_and_the_specification_holds_without_asserts() -> None:
    """INV-9."""
    ended = optimized(*FILES)

    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert " passed" in ended.stdout


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_library_never_turns_bytes_into_code(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [node.module or ""]
        assert not {name.split(".")[0] for name in imported} & FORBIDDEN_MODULES, ast.unparse(node)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in FORBIDDEN_CALLS, ast.unparse(node)
            assert "allow_pickle" not in ast.unparse(node)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "wal3_core" / "model").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_model_which_reads_what_is_stored_has_no_assert(path: Path) -> None:
    found = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]

    assert found == []
