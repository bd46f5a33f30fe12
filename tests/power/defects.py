"""Defects of the local store that power cuts must find."""

from __future__ import annotations

from tests.mutations import Mutation

_STORE = "wal3_core.storage.backends.local:LocalStore"
_DURABILITY = "wal3_core.storage.backends.local_durability:DiskDurability"
_UPLOADED = """                    sync_file(file.fileno())
            except OSError as error:
                raise self._unavailable(error) from error
            yield staged
"""
_UPLOADED_LATE = """                    late = os.open(staged, os.O_RDONLY)
            except OSError as error:
                raise self._unavailable(error) from error
            yield staged
            sync_file(late)
            os.close(late)
"""
_RENAMED = "staged.rename(target)"
_RENAMED_AND_SEEN = "staged.rename(target); return Done(_etag(data))"
_LINKING = "wal3_core.storage.backends.local:_link_new"
_LINK = "os.link(staged, target)"
_DIRECT = "with target.open('xb') as file: file.write(staged.read_bytes()); file.flush(); sync_file(file.fileno())"

DEFECTS = (
    Mutation("file not synced", f"{_STORE}._staged", "sync_file(file.fileno())", "pass"),
    Mutation("file synced before it is written", f"{_STORE}._staged", "file.flush()", "pass"),
    Mutation("file synced after it has its name", f"{_STORE}._staged", _UPLOADED, _UPLOADED_LATE),
    Mutation("folder not synced", f"{_DURABILITY}.sync_written", "sync_folder(folder)", "pass"),
    Mutation(
        "folder above synced instead",
        f"{_DURABILITY}.sync_written",
        "sync_folder(folder)",
        "sync_folder(folder.parent)",
    ),
    Mutation("new folders not synced", f"{_DURABILITY}.make_folder", "sync_folder(each.parent)", "pass"),
    Mutation(
        "existing folder taken for durable",
        f"{_DURABILITY}.make_folder",
        "self._folders.get(each) != removals or ",
        "",
    ),
    Mutation(
        "written in place, not synced",
        _LINKING,
        _LINK,
        "target.write_bytes(staged.read_bytes())",
    ),
    Mutation("written in place, synced", _LINKING, _LINK, _DIRECT),
    Mutation("removed before it is replaced", f"{_STORE}.replace", "staged.rename", "target.unlink(); staged.rename"),
    # Others' writes are visible before they are on disk: nothing is synced while a lock is held.
    Mutation("another's version taken for durable", f"{_DURABILITY}.sync_seen", "sync_folder(folder)", "pass"),
    Mutation("own version taken for durable too early", f"{_STORE}.replace", _RENAMED, _RENAMED_AND_SEEN),
    Mutation(
        "object that refused a create taken for durable", f"{_DURABILITY}.sync_refusing", "self._sync(folder)", "pass"
    ),
)
