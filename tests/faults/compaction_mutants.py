"""Defects of key compaction that worlds with passes, or the model of `tests/spec`, must find."""

from __future__ import annotations

from tests.mutations import Mutation
from tests.spec.compaction.test_compaction_symptoms import (
    test_cursor_created_after_the_cursors_were_read_withdraws_the_pass as cursor_in_between,
)
from tests.spec.compaction.test_compaction_symptoms import (
    test_pass_announced_again_by_another_process_is_withdrawn as announced_again,
)
from tests.spec.compaction.test_compaction_symptoms import (
    test_pass_planned_by_an_earlier_policy_is_not_installed as earlier_policy,
)
from tests.spec.compaction.test_compaction_symptoms import (
    test_pass_whose_fragments_were_deleted_as_orphans_is_not_installed as deleted_as_orphans,
)
from tests.spec.compaction.test_compaction_symptoms import (
    test_tombstone_stays_for_its_retention_after_the_first_pass as retention,
)
from tests.spec.compaction.test_key_compaction import (
    test_tombstones_at_the_end_go_but_for_the_last_and_that_once_one_is_behind_it as at_the_end,
)
from tests.spec.damage.test_damage_on_the_way import (
    test_key_rollup_that_was_read_damaged_is_never_deleted as damaged_on_the_way,
)
from tests.spec.policies.test_keyed_logs import (
    test_writer_takes_records_without_keys_a_second_after_the_log_stops_being_keyed as keyed_no_longer,
)
from wal3_core import MemoryStore
from wal3_core.runtime import shared_runtime

COMPACTION_MUTANTS = (
    Mutation(
        "cursors are not read again after a pass is announced", "Installer._forbidden", "offset < limit", "offset < 0"
    ),
    Mutation(
        "a cursor does not withdraw an announced pass",
        "CursorStore._check_still_held",
        "self._withdraw_compaction(position)",
    ),
    Mutation(
        "a pass goes by any announcement of its token",
        "Installer._hindrance",
        "cause is None and announced != self._checked",
        "cause is None and self._checked is None",
    ),
    Mutation(
        "a pass does not compare the fence",
        "Installer._outdated",
        "manifest.fence != record.fence",
        "manifest.fence < record.fence",
    ),
    Mutation(
        "the policy is not read again after a pass is announced",
        "Installer._forbidden",
        "_1.digest != self._record.policy",
        "_1.digest == self._record.token",
    ),
    Mutation("tombstones expire without a mark", "read_scope", "min(limit, _)", "limit"),
    Mutation(
        "clean prefixes are not waited for",
        "Compaction.expired_below",
        "each.timestamp_us <= _",
        "each.timestamp_us <= now_us",
    ),
    Mutation(
        "superseded records are computed without the compaction bound",
        "KeyCompactor._prepare",
        "find_all(scope, selected, ...)",
        "find_all(scope, replace(selected, rows=(*selected.rows, work.rows([each for each in select(\n"
        "    scope.manifest.pointers, None, UNLIMITED, self._stores.snapshots.load\n"
        ") if each.start.offset >= scope.limit]))), ...)",
    ),
    Mutation(
        "an overtaken pass leaves its mark",
        "Installer._withdrawn",
        "_1.withdraw_compaction()",
        "__import__('dataclasses').replace(_1.withdraw_compaction(), compaction=_1.compaction.passed(\n"
        "    self._token, self._record.limit, self._now_us(), swept=0\n"
        "))",
    ),
    Mutation(
        "a merge leaves out its first fragment",
        "Merger._merged",
        "pa.concat_tables(_1.kept)",
        "pa.concat_tables(_1.kept[1:] or _1.kept)",
    ),
    Mutation(
        "the record of an installed pass is taken for an orphan",
        "InstalledPasses.retains",
        "self._known[token] and _1",
        "False and _1",
    ),
    Mutation(
        "a tombstone that stays at the log's end is recorded as swept",
        "find_all",
        "_1 if none else expired_below",
        "_1 if none else scope.expired_below",
    ),
    Mutation(
        "a key roll-up that was read damaged is deleted",
        "KeyRollupStore.write",
        "put_once(_1, path, data, wrong)",
        "(None if wrong is None else _1.delete(path)) or _1.create(path, data)",
    ),
    Mutation(
        "a writer refuses records without keys by whatever manifest it knows",
        "CommitResultHandler._knows_keyed",
        "_.seen_s >= _",
        "append is not None",
    ),
)


def _store() -> MemoryStore:
    return MemoryStore(shared_runtime())


# Those that the worlds seldom find, each with the test that finds it at once.
FOUND_BY_SYMPTOMS = {
    "clean prefixes are not waited for": retention,
    "a pass does not compare the fence": deleted_as_orphans,
    "the policy is not read again after a pass is announced": earlier_policy,
    "a cursor does not withdraw an announced pass": cursor_in_between,
    "a pass goes by any announcement of its token": announced_again,
    "a tombstone that stays at the log's end is recorded as swept": lambda: at_the_end(_store()),
    "a key roll-up that was read damaged is deleted": lambda: damaged_on_the_way(_store(), 2, cut=True),
    "a writer refuses records without keys by whatever manifest it knows": (
        lambda: keyed_no_longer(_store(), ordered=False)
    ),
}
