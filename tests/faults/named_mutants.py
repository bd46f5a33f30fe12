"""Defects of appends with a name, and of copies that know them, that worlds with such appends must find."""

from __future__ import annotations

from tests.mutations import Mutation

ONCE = "wal3_core.log.write.staged.once:IdempotentAppend."
INSTALLING = "wal3_core.log.write.staged.installing:_Installing."
NAMED = "wal3_core.model.named_append:"
UPDATING = "wal3_core.log.maintain.copy.update:"

NAMED_MUTANTS = (
    Mutation(
        "the writer's cursor does not name an append that begins",
        ONCE + "_go_on",
        "self._save(end, witness, appends)",
        "self._save(end, witness, before)",
    ),
    Mutation(
        "earlier appends are not searched for when one begins",
        ONCE + "_go_on",
        "appends = placed(held if named else (*held, append), self._since(manifest, witness))",
        "appends = held if named else (*held, append)",
    ),
    Mutation(
        "an append that is done is made again",
        ONCE + "_go_on",
        "        if append.is_done:\n            return Kept(append=append, witness=witness)\n",
        "        append = replace(append, start=0, limit=0)\n",
    ),
    Mutation(
        "a batch that was made before a later one is made again",
        ONCE + "_check_newest",
        "if later and max(later) > new.number:",
        "if later and max(later) > new.number + 16:",
    ),
    Mutation(
        "a manifest is not searched before it is built on",
        ONCE + "find",
        "return found if found.is_done else None",
        "return None",
    ),
    Mutation(
        "only the first manifest is searched",
        INSTALLING + "run",
        "base = found.base\n",
        "base, self._remembering, kept = found.base, None, None\n",
    ),
    Mutation(
        "a cursor that another process has moved is relied on",
        ONCE + "check_kept",
        "if found is None or found.etag != kept.witness.etag:",
        "if found is None:",
    ),
    Mutation(
        "the paths of an append do not name it",
        INSTALLING + "_append",
        "token = self._naming + self._runtime.token()[len(self._naming) :]",
        "token = self._runtime.token()",
    ),
    Mutation(
        "a named append is taken as it was staged",
        INSTALLING + "_fitting",
        " and not self._naming else None",
        " else None",
    ),
    Mutation(
        "a cursor remembers the newest append alone",
        NAMED + "begun",
        "return (*(each for each in _beside(held, append) if each not in gone), append)",
        "return (append,)",
    ),
    Mutation(
        "passes change paths behind a writer's cursor",
        "wal3_core.compaction.scope:cursor_offsets",
        "return stores.cursors.offsets(writers_alone=keeps_all)",
        "return {} if keeps_all else stores.cursors.offsets()",
    ),
    Mutation(
        "a place beyond a copy's end is trusted",
        NAMED + "NamedAppend.within",
        "if self.limit > limit else self",
        "if self.limit > 1 << 62 else self",
    ),
    Mutation(
        "the paths of a copy do not name appends",
        UPDATING + "_Updating._upload",
        "naming = places.naming_at(piece.start)",
        'naming = ""',
    ),
    Mutation(
        "a copy's cursors are moved only after the records",
        UPDATING + "_Updating._begin",
        "        cursors.move(writers, copied)\n",
        "",
    ),
    Mutation(
        "a commit of an update divides an append",
        "wal3_core.log.maintain.copy.parts:groups",
        "len(group) >= _FRAGMENTS_PER_COMMIT and not piece.continues and not _may_be_one(group, pointer)",
        "len(group) >= 2",
    ),
)
