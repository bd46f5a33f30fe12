"""A large git history through the log and back: ``make history``.

Makes a repository of 100,000 file changes from a fixed seed, ingests it into a log by
examples/git_history, prints it with ``wal3 cat``, folds the lines by key, and compares the result with
``git ls-tree -r HEAD``. Exit status 1 when they differ.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHANGES = 100_000
PER_COMMIT = 50
FILES = 6000
SEED = 20_260_101
WAL3 = Path(sys.executable).parent / "wal3"


def make_repository(folder: Path) -> None:
    """Write a history of additions, changes and deletions through git fast-import."""
    chosen = random.Random(SEED)
    subprocess.run(["git", "init", "-q", folder], check=True)
    importer = subprocess.Popen(["git", "-C", folder, "fast-import", "--quiet"], stdin=subprocess.PIPE)
    assert importer.stdin is not None
    out, present = importer.stdin, set[str]()
    for number in range(CHANGES // PER_COMMIT):
        out.write(b"commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nc\n" % (1_600_000_000 + number))
        for index in sorted(chosen.sample(range(FILES), PER_COMMIT)):
            path = f"folder{index % 40}/file {index}.bin"
            if path in present and chosen.random() < 0.15:
                present.discard(path)
                out.write(f'D "{path}"\n'.encode())
            else:
                present.add(path)
                body = chosen.randbytes(chosen.randrange(2000))
                out.write(f'M 100644 inline "{path}"\ndata {len(body)}\n'.encode() + body + b"\n")
    out.close()
    assert importer.wait() == 0
    subprocess.run(["git", "-C", folder, "symbolic-ref", "HEAD", "refs/heads/main"], check=True)


def tree_of(folder: Path) -> dict[str, str]:
    listed = subprocess.run(
        ["git", "-C", folder, "ls-tree", "-r", "-z", "HEAD"], check=True, capture_output=True
    ).stdout
    rows = [row.split("\t", 1) for row in listed.decode().split("\0") if row]
    return {path: meta.split()[2] for meta, path in rows}


def fold(url: str) -> tuple[dict[str, str], int]:
    """Keep the blob id of each key's last body; a tombstone removes the key."""
    folded: dict[str, str] = {}
    count = 0
    with subprocess.Popen([WAL3, "--store", url, "cat", "history"], stdout=subprocess.PIPE) as printer:
        assert printer.stdout is not None
        for line in printer.stdout:
            count += 1
            record = json.loads(line)
            if "body_b64" in record:
                body = base64.b64decode(record["body_b64"])
            elif record["body"] is None:
                del folded[record["key"]]
                continue
            else:
                body = record["body"].encode()
            folded[record["key"]] = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
    assert printer.returncode == 0
    return folded, count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository, url = Path(folder) / "repository", (Path(folder) / "store").as_uri()
        make_repository(repository)
        began = time.perf_counter()
        command = [sys.executable, "-m", "examples.git_history", repository, url, "history"]
        subprocess.run(command, check=True)
        ingested = time.perf_counter()
        folded, count = fold(url)
        read = time.perf_counter()
        subprocess.run([WAL3, "--store", url, "scrub", "history"], check=True)
        expected = tree_of(repository)
    print(f"{count:,} records in {ingested - began:.1f} s; printed and folded in {read - ingested:.1f} s")
    print(f"files in the tree: {len(expected):,}; equal to the folded log: {folded == expected}")
    sys.exit(0 if folded == expected and count >= CHANGES else 1)


if __name__ == "__main__":
    main()
