"""Where a log's objects lie under its root, and which names are allowed.

manifest/MANIFEST.json
Life=<log_id>/
    log/Bucket=<16 hex>/Writer=<token>/FragmentSeqNo=<16 hex>.parquet
    snapshot/SNAPSHOT.<setsum>.<first 16 hex of the SHA-256 of its bytes>
    keys/SNAPSHOT.<the same as the snapshot whose key roll-up it is>
    cursor/<name>.json      pin/<name>.json      policy.json
    gc/GARBAGE.<setsum of what is dropped>.<the collection's token>      gc/MARKED.<the same>      gc/CLOCK
    compaction/PASS.<the pass's token>.json      compaction/DROPPED.<the same>.<16 hex>.parquet
    compaction/DELETED.<the same>

Paths in documents are relative to the folder of the log's life. Lives share no object but the manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import NewType

from wal3_core.arguments import text, wrong
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.setsum import Setsum
from wal3_core.format.strict_json import text_as

# Names one life of a log: 32 random hex digits, new with every create, copy, restore and successor.
LogId = NewType("LogId", str)
# The id in a document that is not written yet.
NO_LOG = LogId("")

MANIFEST = "manifest/MANIFEST.json"
MANIFEST_FOLDER = "manifest/"
CURSOR_FOLDER = "cursor/"
FRAGMENT_FOLDER = "log/"
SNAPSHOT_FOLDER = "snapshot/"
# The folder of key roll-ups, in a life's folder, which is no part of a log's name: a log may have this name.
KEY_ROLLUP_FOLDER = "keys/"
# The folder of passes, in a life's folder, as KEY_ROLLUP_FOLDER.
COMPACTION_FOLDER = "compaction/"
# The folders of the objects that are deleted once nothing refers to them, or their pass is never installed.
DATA_FOLDERS = (FRAGMENT_FOLDER, SNAPSHOT_FOLDER, KEY_ROLLUP_FOLDER, COMPACTION_FOLDER)
GARBAGE_FOLDER = "gc/"
PIN_FOLDER = "pin/"
# A server's dirty log is named for it, below this.
DIRTY = "dirty"
# The beginning of the name of a cursor that finds a writer's last append again, by the paths of its fragments.
WRITER_CURSOR = "writer-"
# The cursor of a queue's broker: what lies behind it is not in a checkpoint yet.
QUEUE_CURSOR = "queue"
# Rewritten only to read the store's time.
CLOCK = "gc/CLOCK"
POLICY = "policy.json"
# The object at a store's root that identifies it. It is no log's: no part of a log's name has a dot.
STORE_IDENTITY = "wal3-store.json"
FRAGMENTS_PER_BUCKET = 4096
# A cursor's or pin's name: with what a path adds, still within a file name's limit.
NAME_LENGTH_MAX = 200
LOG_NAME_LENGTH_MAX = 500
# A file system's limit for one name, in bytes; names are ASCII, so also in characters.
PART_LENGTH_MAX = 255

# A log may lie below another, so no part of its name may equal one of a log's own folders.
RESERVED_PARTS = frozenset({"cursor", "gc", "log", "manifest", "pin", "snapshot"})

_PART = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_TOKEN = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LOG_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_LIFE = re.compile(r"Life=(?P<log_id>[0-9a-f]{32})/", re.ASCII)
_FRAGMENT = re.compile(
    r"log/Bucket=(?P<bucket>[0-9a-f]{16})/Writer=(?P<token>[0-9a-f]{16})/FragmentSeqNo=(?P<seq_no>[0-9a-f]{16})\.parquet",
    re.ASCII,
)
_HINT = "gc/MARKED."
_GARBAGE = re.compile(r"gc/GARBAGE\.(?P<setsum>[0-9a-f]{64})\.(?P<token>[0-9a-f]{16})", re.ASCII)
_PASS = re.compile(
    r"compaction/(PASS\.(?P<passed>[0-9a-f]{16})\.json|DROPPED\.(?P<dropped>[0-9a-f]{16})\.[0-9a-f]{16}\.parquet"
    r"|DELETED\.(?P<deleted>[0-9a-f]{16}))",
    re.ASCII,
)
_SNAPSHOT = re.compile(r"snapshot/SNAPSHOT\.(?P<setsum>[0-9a-f]{64})\.(?P<hash>[0-9a-f]{16})", re.ASCII)


def check_log_name(name: object, what: str = "log") -> str:
    """Return the name when it may name a log: parts of ``[A-Za-z0-9_-]`` joined by ``/``."""
    what = f"{what} name"
    name = text(name, what)
    parts = name.split("/")
    if len(name) > LOG_NAME_LENGTH_MAX or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidRequestError(
            f"{what}: expected parts of [A-Za-z0-9_-] joined by /, at most {LOG_NAME_LENGTH_MAX}"
            f" characters, found {name[:80]!r}"
        )
    for part in parts:
        if part in RESERVED_PARTS:
            message = f"{what} {name!r}: expected no part that is reserved for a log's own folders, found {part!r}"
            raise InvalidRequestError(message)
        if len(part) > PART_LENGTH_MAX:
            raise InvalidRequestError(
                f"{what} {name[:80]!r}…: expected parts of at most {PART_LENGTH_MAX} bytes, as file systems take them,"
                f" found one of {len(part)}: {part[:40]!r}…"
            )
    return name


def is_dirty_log(name: str) -> bool:
    """Return whether a log's name is that of a dirty log, or of one of its lanes."""
    return name.startswith(f"{DIRTY}/")


def is_name_part(part: str) -> bool:
    """Return whether a log's name may have this part."""
    return _PART.fullmatch(part) is not None and part not in RESERVED_PARTS and len(part) <= PART_LENGTH_MAX


def _name_check(what: str) -> Callable[..., str]:
    """Return what checks a name of one part of ``[A-Za-z0-9_-]``, and returns it."""

    def check(name: object, _argument: str = "name") -> str:
        name = text(name, what)
        if len(name) > NAME_LENGTH_MAX or not _PART.fullmatch(name):
            expected = f"expected [A-Za-z0-9_-], at most {NAME_LENGTH_MAX} bytes"
            raise InvalidRequestError(f"{what}: {expected}, found {len(name)}: {name[:80]!r}")
        return name

    return check


check_cursor_name, check_pin_name = _name_check("cursor name"), _name_check("pin name")


def check_writer_cursor_name(name: object, argument: str = "name") -> str:
    """Return the name when it may name the cursor of a writer that repeats appends."""
    name = check_cursor_name(name)
    if not name.startswith(WRITER_CURSOR):
        raise wrong(argument, f"a cursor's name that begins with {WRITER_CURSOR}", name)
    return name


def _given(pattern: re.Pattern[str], expected: str) -> Callable[[object, str], str]:
    """Return the check of a caller's argument that is to be text of a pattern."""

    def check(value: object, argument: str) -> str:
        value = text(value, argument)
        if not pattern.fullmatch(value):
            raise wrong(argument, expected, value)
        return value

    return check


# Of the token of a pass, the id of a log, and the path of a garbage document.
given_token, given_log_id = _given(_TOKEN, "16 hex digits"), _given(_LOG_ID, "32 hex digits")
given_garbage_path = _given(_GARBAGE, f"{GARBAGE_FOLDER}GARBAGE.<setsum>.<token>")


def _name_in(path: str, folder: str) -> str:
    """Return the name of a document in a folder by its path; CorruptError for a foreign file."""
    name = path.removeprefix(folder).removesuffix(".json")
    if path != f"{folder}{name}.json" or not _PART.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise CorruptError(f"{path[:200]!r}: expected {folder}<name>.json")
    return name


def check_token(token: str, what: str) -> str:
    """Return the writer token read from a document when it is sixteen hex digits."""
    if not _TOKEN.fullmatch(token):
        raise CorruptError(f"{what}: writer token: expected 16 hex digits, found {token[:40]!r}")
    return token


def check_log_id(log_id: str, what: str) -> LogId:
    """Return the id read from a document when it is 32 hex digits."""
    if not _LOG_ID.fullmatch(log_id):
        raise CorruptError(f"{what}: log_id: expected 32 hex digits, found {log_id[:40]!r}")
    return LogId(log_id)


def life_folder(log_id: LogId) -> str:
    """Folder, under the log's root, of all objects of one life except the manifest."""
    return f"Life={log_id}/"


def life_of(folder: str) -> LogId | None:
    """Return the life that a folder or object under a log's root belongs to; None for any other."""
    match = _LIFE.match(folder)
    return None if match is None else LogId(match["log_id"])


def cursor_path(name: str) -> str:
    """Path of a cursor's document."""
    return f"{CURSOR_FOLDER}{check_cursor_name(name)}.json"


def cursor_name(path: str) -> str:
    """Name of the cursor whose document is at ``path``; CorruptError for a foreign file."""
    return _name_in(path, CURSOR_FOLDER)


def fragment_folder(seq_no: FragmentSeqNo) -> str:
    """Folder of the fragments of all writers whose numbers are near this one."""
    return f"{FRAGMENT_FOLDER}Bucket={seq_no // FRAGMENTS_PER_BUCKET * FRAGMENTS_PER_BUCKET:016x}/"


def fragment_path(seq_no: FragmentSeqNo, token: str) -> str:
    """Path of a fragment; unique to one writer, since the token is."""
    return f"{fragment_folder(seq_no)}Writer={token}/FragmentSeqNo={seq_no:016x}.parquet"


def check_fragment_path(path: str, seq_no: FragmentSeqNo) -> str:
    """Return the writer token of a pointer's path; CorruptError unless it is the path of that fragment."""
    match = _FRAGMENT.fullmatch(path)
    if match is None or path != fragment_path(seq_no, match["token"]):
        raise CorruptError(f"fragment {seq_no}: expected its path in the log, found {path[:160]!r}")
    return match["token"]


def snapshot_path(setsum: Setsum, data: bytes) -> str:
    """Path of a snapshot, named by its setsum and the hash of its bytes."""
    return f"{SNAPSHOT_FOLDER}SNAPSHOT.{setsum.hexdigest()}.{hashlib.sha256(data).hexdigest()[:16]}"


def check_snapshot_path(path: str, setsum: Setsum) -> str:
    """Return a pointer's path; CorruptError unless it is the path of a snapshot with that setsum."""
    match = _SNAPSHOT.fullmatch(path)
    if match is None or match["setsum"] != setsum.hexdigest():
        raise CorruptError(f"snapshot: expected a path under SNAPSHOT.{setsum}, found {path[:160]!r}")
    return path


def key_rollup_path(snapshot: str) -> str:
    """Path of the key roll-up of the snapshot at a path."""
    return KEY_ROLLUP_FOLDER + snapshot.removeprefix(SNAPSHOT_FOLDER)


def rolled_up_path(path: str) -> str | None:
    """Path of the snapshot whose key roll-up is at a path; None for any other path."""
    snapshot = SNAPSHOT_FOLDER + path.removeprefix(KEY_ROLLUP_FOLDER)
    return snapshot if path.startswith(KEY_ROLLUP_FOLDER) and _SNAPSHOT.fullmatch(snapshot) else None


def is_snapshot_path(path: str) -> bool:
    """Return whether a snapshot may lie at a path."""
    return _SNAPSHOT.fullmatch(path) is not None


def check_object_path(path: str) -> str:
    """Return the path of a fragment, a snapshot, a key roll-up, or of a pass's record or list; else CorruptError."""
    if not is_snapshot_path(path) and rolled_up_path(path) is None and pass_object_token(path) is None:
        check_fragment_path(path, fragment_seq_no(path))
    return path


def fragment_seq_no(path: str) -> FragmentSeqNo:
    """Return the number of the fragment at a path; CorruptError for any other path."""
    match = _FRAGMENT.fullmatch(path)
    if match is None:
        raise CorruptError(f"{path[:160]!r}: expected the path of a fragment or a snapshot")
    return FragmentSeqNo(int(match["seq_no"], 16))


def garbage_path(setsum: Setsum, token: str) -> str:
    """Path of a garbage document."""
    return f"{GARBAGE_FOLDER}GARBAGE.{setsum.hexdigest()}.{token}"


def check_garbage_path(path: str) -> str:
    """Return the path when it is a garbage document's; CorruptError for a foreign file."""
    if not _GARBAGE.fullmatch(path):
        raise CorruptError(f"{path[:200]!r}: expected {GARBAGE_FOLDER}GARBAGE.<setsum>.<token>")
    return path


def hint_path(path: str) -> str:
    """Path of the hint beside a garbage document, which says that the document is pruned."""
    return _HINT + path.removeprefix(f"{GARBAGE_FOLDER}GARBAGE.")


def hinted_path(path: str) -> str | None:
    """Path of the garbage document that a hint belongs to; None for any other path."""
    document = f"{GARBAGE_FOLDER}GARBAGE.{path.removeprefix(_HINT)}"
    return document if path.startswith(_HINT) and _GARBAGE.fullmatch(document) else None


def pin_path(name: str) -> str:
    """Path of a pin's document."""
    return f"{PIN_FOLDER}{check_pin_name(name)}.json"


def pin_name(path: str) -> str:
    """Name of the pin whose document is at ``path``; CorruptError for a foreign file."""
    return _name_in(path, PIN_FOLDER)


def pass_path(token: str) -> str:
    """Path of a pass's record."""
    return f"{COMPACTION_FOLDER}PASS.{token}.json"


def dropped_path(token: str, seq_no: FragmentSeqNo) -> str:
    """Path of the list of records that a pass left out of the fragment it wrote with this number."""
    return f"{COMPACTION_FOLDER}DROPPED.{token}.{seq_no:016x}.parquet"


def listed_fragment_path(path: str) -> str:
    """Path of the fragment that a pass wrote beside the list of records at a path."""
    token, seq_no = pass_token(path), path.removesuffix(".parquet").rpartition(".")[2]
    return fragment_path(FragmentSeqNo(int(seq_no, 16)), token)


def deleted_path(token: str) -> str:
    """Path of an empty object, written when the objects that a pass replaced were deleted."""
    return f"{COMPACTION_FOLDER}DELETED.{token}"


def pass_token(path: str) -> str:
    """Token of the pass that an object in its folder belongs to; CorruptError for a foreign file."""
    match = _PASS.fullmatch(path)
    if match is None:
        raise CorruptError(f"{path[:200]!r}: expected {COMPACTION_FOLDER}PASS, DROPPED or DELETED with a pass's token")
    return next(token for token in match.groupdict().values() if token is not None)


def pass_object_token(path: str) -> str | None:
    """Token of the pass whose record, or list of dropped records, is at a path; None for any other path."""
    match = _PASS.fullmatch(path)
    return None if match is None else match["passed"] or match["dropped"]


def is_dropped_path(path: str) -> bool:
    """Whether a list of the records that a pass dropped is at a path."""
    match = _PASS.fullmatch(path)
    return match is not None and match["dropped"] is not None


def deleted_token(path: str) -> str | None:
    """Token of the pass of which an object says that what it replaced is deleted; None for any other path."""
    match = _PASS.fullmatch(path)
    return None if match is None else match["deleted"]


def garbage_token(path: str) -> str:
    """Token in the path of a garbage document."""
    return check_garbage_path(path).rpartition(".")[2]


LOG_ID, TOKEN = text_as(check_log_id), text_as(check_token)
