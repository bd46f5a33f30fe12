"""Decodes files in a process of its own and reports each outcome and how far memory rose.

``python -m tests.hostile.probe FILE`` reads lines ``{"path": …, "pointer": …, "limit_bytes": …}`` and prints lines.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from tests.hostile.specimens import fragment, pointer_of
from tests.lanes import lanes_decided
from wal3_core.errors import CorruptError
from wal3_core.format import parquet, strict_json

# The limit of a probe if the library's own bound fails: enough to see by how much.
ADDRESS_SPACE_MAX = 12 * 2**30


def peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def probe(path: str, pointer: strict_json.JsonObject, limit_bytes: int) -> dict[str, str | int]:
    data, pointed = Path(path).read_bytes(), pointer_of(pointer)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    try:
        found = parquet.decode(data, pointed, expanded_bytes_max=limit_bytes)
    except CorruptError as error:
        outcome: str | int = str(error)
    else:
        outcome = len(found.table)
    return {"outcome": outcome, "grown_bytes": peak_bytes() - before}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    # Memory that the libraries allocate on first use does not count.
    parquet.decode(*fragment([(b"k", b"1")]), expanded_bytes_max=2**20)
    lanes_decided()
    for line in Path(sys.argv[1]).read_text().splitlines():
        print(json.dumps(probe(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
