"""Compiled hashing in processes of their own: begun, shared, forked, ended, switched off, and not to be had."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lanes import DEADLINE_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba: pip install '.[fast]'"),
]
TIMEOUT_S = 2 * DEADLINE_S
# The same log in each: its setsum says whether the digests are right.
APPEND = """
from tests.lanes import lanes_decided
from wal3_core import LogReader, LogWriter, open_store
import os
from wal3_core.hashing.lanes import LANES

def appended(log):
    # One of its own: a forked child has no store in memory of its parent's.
    store = open_store(f"memory:{os.getpid()}")
    with LogWriter.open_or_create(store, log) as writer:
        writer.append_many([b"%d" % number * 100 for number in range(1000)])
    return sum(1 for record in LogReader.open(store, log).records())
"""


def python(code: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", APPEND + code],
        env={**os.environ, "WAL3_FAST": "1", "WAL3_CACHE_DIR": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(process: subprocess.Popen[str]) -> str:
    out, complaints = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, complaints) == (0, "")
    return out.strip()


def test_hashlib_serves_until_another_process_has_compiled_the_code(tmp_path: Path) -> None:
    first = printed(python("print(appended('a'), LANES.hashing().by); lanes_decided(); print(appended('b'))", tmp_path))
    code = "import sys; print(LANES.load(), appended('a'), 'numba' in sys.modules)"

    assert first == "1000 hashlib\n1000"
    assert len(list(tmp_path.glob("*.code"))) == 1
    # Which needs numba no more.
    assert printed(python(code, tmp_path)) == "True 1000 False"


def test_processes_that_begin_at_once_share_the_code(tmp_path: Path) -> None:
    several = [python("print(lanes_decided(), appended('a'))", tmp_path) for _ in range(3)]

    assert [printed(each) for each in several] == ["True 1000"] * 3
    assert len(list(tmp_path.glob("*.code"))) == 1


def test_process_ends_while_its_code_is_compiled_and_leaves_it_to_others(tmp_path: Path) -> None:
    assert (
        printed(python("LANES.load(); print(LANES.hashing().because)", tmp_path)) == "the faster code is being compiled"
    )

    deadline_s = time.monotonic() + DEADLINE_S
    while not list(tmp_path.glob("*.code")):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


FORKED = """
import os
def child(log):
    process = os.fork()
    if process == 0:
        os._exit(0 if appended(log) == 1000 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

LANES.load()
results = [child("while-compiled")]
lanes_decided()
results += [child("afterwards"), appended("in-the-parent")]
turn = LANES._turn.pop()
results += [child("while-loaded")]
print(*results)
"""


def test_process_forks_while_code_is_compiled_or_loaded_and_afterwards(tmp_path: Path) -> None:
    assert printed(python(FORKED, tmp_path)) == "0 0 1000 0"


def test_variable_switches_it_off(tmp_path: Path) -> None:
    code = "import sys; print(LANES.load(), appended('a'), LANES.hashing().because, 'llvmlite' in sys.modules)"

    assert printed(python(code, tmp_path, WAL3_FAST="0")) == "False 1000 WAL3_FAST is 0 False"
    assert list(tmp_path.iterdir()) == []


def test_cache_that_cannot_be_written_leaves_hashlib(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = "print(lanes_decided(), appended('a'), LANES.hashing().because)"

    found = printed(python(code, tmp_path / "file" / "cache"))

    assert found.startswith("False 1000 RuntimeError")
    assert "wal3_core.hashing.building: expected exit code 0, found 1" in found


def test_without_numba_it_says_what_installs_it(tmp_path: Path) -> None:
    missing = "import importlib.util as u; found = u.find_spec\n"
    missing += "u.find_spec = lambda name, *rest: None if name == 'numba' else found(name, *rest)\n"

    found = printed(python(f"{missing}print(LANES.load(), appended('a'), LANES.hashing().because)", tmp_path))

    assert found.startswith("False 1000 expected the package numba")
    assert "(wal3's extra fast)" in found


def test_few_records_load_nothing(tmp_path: Path) -> None:
    code = "import sys; print(appended('a'), 'llvmlite' in sys.modules)"
    ended = python(code, tmp_path, WAL3_FAST="")

    assert printed(ended) == "1000 False"
    assert list(tmp_path.iterdir()) == []


WRITE = """
import sys
from wal3_core import Message
store = open_store(sys.argv[1])
print(lanes_decided())
with LogWriter.open_or_create(store, sys.argv[2]) as writer:
    writer.append_many([b"%d" % number * 100 for number in range(1000)])
    keyed = [Message(None if number % 7 == 0 else b"x" * number, key=b"%d" % number) for number in range(1000)]
    writer.append_many(keyed)
"""
SCRUB = """
import sys
from wal3_core import scrub
print(lanes_decided())
for log in ("a", "b"):
    report = scrub(open_store(sys.argv[1]), log)
    print(report.balanced)
"""


@pytest.mark.parametrize("reads", ["0", "1"])
def test_what_is_written_with_lanes_or_without_is_sound_to_both(tmp_path: Path, reads: str) -> None:
    url = (tmp_path / "store").as_uri()
    for log, writes in (("a", "0"), ("b", "1")):
        arguments = f"import sys; sys.argv[1:] = {[url, log]}\n"
        assert printed(python(arguments + WRITE, tmp_path / "cache", WAL3_FAST=writes)) == str(writes == "1")

    found = printed(python(f"import sys; sys.argv[1:] = {[url]}\n{SCRUB}", tmp_path / "cache", WAL3_FAST=reads))

    assert found.splitlines() == [str(reads == "1"), "True", "True"]
