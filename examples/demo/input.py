"""The demo's input: a repository's history, one log per top-level folder, or a bundled sample."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path

from wal3_core import InvalidRequestError, Message
from wal3_core.format.paths import RESERVED_PARTS

MESSAGES_MAX = 20_000
BODIES_BYTES_MAX = 64 * 2**20
_BLOBS_AT_ONCE = 256
# Modes of what has no bytes: nothing, and a submodule.
_NO_FILE = {b"000000", b"160000"}
_LOG = (
    *("-c", "log.follow=false", "log", "--first-parent", "--reverse", "--root", "--diff-merges=first-parent"),
    *("--raw", "-z", "--no-abbrev", "--no-renames", "--no-relative", "--no-show-signature", "--no-color", "--format="),
    *("-O/dev/null", "--ignore-submodules=none"),
)
ROOT_LOG = "root"
# The paths and blob ids of the oldest file changes of a public repository (github.com/slatedb/slatedb).
_SAMPLE = "sample/file_changes.jsonl.gz"


def read_input(repo: Path | None) -> tuple[str, dict[str, list[Message]]]:
    """Read the repository's history, or the sample when there is no repository or no git; say which, too."""
    if repo is None:
        return "the bundled sample", _by_log(_sample())
    try:
        return f"the git history of {repo}", _by_log(_history(repo))
    except InvalidRequestError as error:
        return f"the bundled sample ({error})", _by_log(_sample())


def log_of(path: bytes) -> str:
    """Name the log a file's changes go to: its top-level folder, with other characters replaced, or ``root``."""
    folder, slash, _ = path.decode(errors="replace").partition("/")
    if not slash:
        return ROOT_LOG
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", folder.lstrip(".")) or "_"
    return f"{name}_" if name in RESERVED_PARTS else name


def _by_log(messages: Iterable[Message]) -> dict[str, list[Message]]:
    """Take the oldest messages: those of a large repository are more than a demo shows."""
    logs: dict[str, list[Message]] = {}
    left = BODIES_BYTES_MAX
    for message in islice(messages, MESSAGES_MAX):
        left -= len(message.body or b"")
        if left < 0:
            break
        logs.setdefault(log_of(message.key or b""), []).append(message)
    return logs


def _history(repo: Path) -> Iterator[Message]:
    """Yield the file changes on the first-parent line of HEAD, oldest first; without submodules."""
    if prefix := _git(repo, "rev-parse", "--show-prefix").strip():
        raise InvalidRequestError(f"repository {repo}: expected its top, found the folder {prefix!r} of one")
    files = _changed_files(_git(repo, *_LOG).split(b"\0")[:-1])
    while some := list(islice(files, _BLOBS_AT_ONCE)):
        stored = io.BytesIO(_git(repo, "cat-file", "--batch", stdin=b"".join(blob + b"\n" for _, blob in some if blob)))
        for path, blob in some:
            body = None
            if blob is not None:
                # "<id> blob <size>", a newline, the bytes, a newline; or "<id> missing".
                size = stored.readline().split()[-1]
                if size == b"missing":
                    message = f"repository {repo}: expected the file {blob.decode()}, found none: fetch all of it"
                    raise InvalidRequestError(message)
                body = stored.read(int(size) + 1)[:-1]
            yield Message(body, path)


def _changed_files(tokens: Sequence[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield paths and blobs, None for a file that is gone, of ``:OLD_MODE NEW_MODE OLD_ID NEW_ID STATUS``, PATH..."""
    for entry, path in zip(tokens[::2], tokens[1::2], strict=True):
        before, after, _, blob, _ = entry[1:].split(b" ")
        if after not in _NO_FILE or before not in _NO_FILE:
            yield path, None if after in _NO_FILE else blob


def _git(repo: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Return what git prints. InvalidRequestError says why it does not."""
    # Git's own variables, as it sets them for its hooks, would name another repository.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        command = ["git", "--no-replace-objects", "-C", str(repo), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, check=True, env=outside).stdout  # noqa: S603 - no shell
    except FileNotFoundError as error:
        raise InvalidRequestError("git: expected the program on the PATH, found none: install git") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise InvalidRequestError(f"repository {repo}: expected git to read it, found: {said}") from error


def _sample() -> Iterator[Message]:
    packed = resources.files("examples.demo").joinpath(_SAMPLE).read_bytes()
    for line in gzip.decompress(packed).splitlines():
        change = json.loads(line)
        blob = change["blob"]
        yield Message(None if blob is None else blob.encode(), change["path"].encode())
