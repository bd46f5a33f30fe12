"""Defects of the local store that power cuts must find."""

from __future__ import annotations

from tests.mutations import Mutation

DEFECTS = (
    Mutation("file not synced", "LocalStore._staged", "sync_file(...)", "pass"),
    Mutation("file synced before it is written", "LocalStore._staged", "file.flush()", "pass"),
    Mutation(
        "file synced after it has its name",
        "LocalStore._staged",
        "try:\n"
        "    ...\n"
        "    with _1 as _2:\n"
        "        ...\n"
        "        sync_file(_)\n"
        "except OSError as error: ...\n"
        "yield staged",
        "try:\n"
        "    ...\n"
        "    with _1 as _2:\n"
        "        ...\n"
        "        late = os.open(staged, os.O_RDONLY)\n"
        "except OSError as error: ...\n"
        "yield staged\n"
        "sync_file(late)\n"
        "os.close(late)",
    ),
    Mutation("folder not synced", "DiskDurability.sync_written", "sync_folder(_)", "pass"),
    Mutation("folder above synced instead", "DiskDurability.sync_written", "sync_folder(_1)", "sync_folder(_1.parent)"),
    Mutation("new folders not synced", "DiskDurability.make_folder", "sync_folder(...)", "pass"),
    Mutation(
        "existing folder taken for durable", "DiskDurability.make_folder", "_ or not each.is_dir()", "not each.is_dir()"
    ),
    Mutation("written in place, not synced", "_link_new", "os.link(...)", "target.write_bytes(staged.read_bytes())"),
    Mutation(
        "written in place, synced",
        "_link_new",
        "os.link(...)",
        "with target.open('xb') as file:\n"
        "    file.write(staged.read_bytes())\n"
        "    file.flush()\n"
        "    sync_file(file.fileno())",
    ),
    Mutation(
        "removed before it is replaced",
        "LocalStore.replace",
        "staged.rename(target)",
        "target.unlink()\nstaged.rename(target)",
    ),
    # Others' writes are visible before they are on disk: nothing is synced while a lock is held.
    Mutation("another's version taken for durable", "DiskDurability.sync_seen", "sync_folder(...)", "pass"),
    Mutation(
        "own version taken for durable too early",
        "LocalStore.replace",
        "staged.rename(target)",
        "staged.rename(target)\nreturn Done(_etag(data))",
    ),
    Mutation(
        "object that refused a create taken for durable", "DiskDurability.sync_refusing", "self._sync(...)", "pass"
    ),
)
