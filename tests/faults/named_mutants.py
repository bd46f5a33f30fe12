"""Defects of appends with a name, and of copies that know them, that worlds with such appends must find."""

from __future__ import annotations

from tests.mutations import Mutation

NAMED_MUTANTS = (
    Mutation(
        "the writer's cursor does not name an append that begins",
        "IdempotentAppend._go_on",
        "self._save(_1, _2, appends)",
        "self._save(_1, _2, before)",
    ),
    Mutation("earlier appends are not searched for when one begins", "IdempotentAppend._go_on", "placed(_1, _)", "_1"),
    Mutation(
        "an append that is done is made again",
        "IdempotentAppend._go_on",
        "if append.is_done: ...",
        "append = replace(append, start=0, limit=0)",
    ),
    Mutation(
        "a batch that was made before a later one is made again",
        "IdempotentAppend._check_newest",
        "max(later) > _1",
        "max(later) > _1 + 16",
    ),
    Mutation(
        "a manifest is not searched before it is built on",
        "IdempotentAppend.find",
        "found if found.is_done else None",
        "None",
    ),
    Mutation(
        "only the first manifest is searched",
        "_Installing.run",
        "base = found.base",
        "base, self._remembering, kept = found.base, None, None",
    ),
    Mutation(
        "a cursor that another process has moved is relied on",
        "IdempotentAppend.check_kept",
        "found is None or _",
        "found is None",
    ),
    Mutation(
        "the paths of an append do not name it",
        "_Installing._append",
        "token = self._naming + _",
        "token = self._runtime.token()",
    ),
    Mutation("a named append is taken as it was staged", "_Installing._fitting", "_1 and not self._naming", "_1"),
    Mutation("a cursor remembers the newest append alone", "begun", "(*_, append)", "(append,)"),
    Mutation(
        "passes change paths behind a writer's cursor",
        "cursor_offsets",
        "_1.offsets(writers_alone=keeps_all)",
        "{} if keeps_all else _1.offsets()",
    ),
    Mutation(
        "a place beyond a copy's end is trusted", "NamedAppend.within", "self.limit > limit", "self.limit > 1 << 62"
    ),
    Mutation("the paths of a copy do not name appends", "_Updating._upload", "places.naming_at(_)", '""'),
    Mutation("a copy's cursors are moved only after the records", "_Updating._begin", "cursors.move(...)"),
    Mutation("a commit of an update divides an append", "groups", "len(group) >= _ and _", "len(group) >= 2"),
)
