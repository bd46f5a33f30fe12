"""Defects of key compaction that worlds with passes, or the model of `tests/spec`, must find."""

from __future__ import annotations

from tests.mutations import Mutation
from tests.spec.test_43_keyed_logs import (
    test_writer_takes_records_without_keys_a_second_after_the_log_stops_being_keyed as keyed_no_longer,
)
from tests.spec.test_77_compaction_symptoms import (
    test_cursor_created_after_the_cursors_were_read_withdraws_the_pass as cursor_in_between,
)
from tests.spec.test_77_compaction_symptoms import (
    test_pass_announced_again_by_another_process_is_withdrawn as announced_again,
)
from tests.spec.test_77_compaction_symptoms import (
    test_pass_planned_by_an_earlier_policy_is_not_installed as earlier_policy,
)
from tests.spec.test_77_compaction_symptoms import (
    test_pass_whose_fragments_were_deleted_as_orphans_is_not_installed as deleted_as_orphans,
)
from tests.spec.test_77_compaction_symptoms import (
    test_tombstone_stays_for_its_retention_after_the_first_pass as retention,
)
from tests.spec.test_77_key_compaction import (
    test_tombstones_at_the_end_of_a_log_go_but_for_the_last_and_that_one_once_a_record_is_behind_it as at_the_end,
)
from tests.spec.test_85_damage_on_the_way import (
    test_key_rollup_that_was_read_damaged_is_never_deleted as damaged_on_the_way,
)
from wal3_core.runtime import shared_runtime
from wal3_core.storage.backends.memory import MemoryStore

INSTALLER = "wal3_core.compaction.installing:Installer."
CURSORS = "wal3_core.storage.documents.cursor_store:CursorStore."

COMPACTION_MUTANTS = (
    Mutation(
        "cursors are not read again after a pass is announced",
        INSTALLER + "_forbidden",
        "for name, offset in cursors.items() if offset < limit",
        "for name, offset in cursors.items() if offset < 0",
    ),
    Mutation(
        "a cursor does not withdraw an announced pass",
        CURSORS + "_check_still_held",
        "            self._withdraw_compaction(position)\n",
        "",
    ),
    Mutation(
        "a pass goes by any announcement of its token",
        INSTALLER + "_hindrance",
        "if cause is None and announced != self._checked:",
        "if cause is None and self._checked is None:",
    ),
    Mutation(
        "a pass does not compare the fence",
        INSTALLER + "_outdated",
        "if manifest.fence != record.fence:",
        "if manifest.fence < record.fence:",
    ),
    Mutation(
        "the policy is not read again after a pass is announced",
        INSTALLER + "_forbidden",
        "if self._stores.policies.load().digest != self._record.policy:",
        "if self._stores.policies.load().digest == self._record.token:",
    ),
    Mutation(
        "tombstones expire without a mark",
        "wal3_core.compaction.scope:read_scope",
        "expired_below = min(extent.limit, manifest.compaction.expired_below(now_us, limits.delete_retention_s))",
        "expired_below = extent.limit",
    ),
    Mutation(
        "marks are not waited for",
        "wal3_core.model.compacting:Compaction.expired_below",
        "mark.timestamp_us <= since_us",
        "mark.timestamp_us <= now_us",
    ),
    Mutation(
        "superseded records are computed without the compaction bound",
        "wal3_core.compaction.compactor:KeyCompactor._prepare",
        "find_all(scope, selected, ",
        "find_all(scope, replace(selected, rows=(*selected.rows, work.rows([each for each in select("
        "scope.manifest.pointers, None, UNLIMITED, self._stores.snapshots.load) if each.start.offset >= scope.limit]"
        "))), ",
    ),
    Mutation(
        "an overtaken pass leaves its mark",
        INSTALLER + "_withdrawn",
        "return withdraw_compaction(manifest) if ours",
        "return __import__('dataclasses').replace(withdraw_compaction(manifest), compaction=manifest.compaction.passed("
        "self._token, self._record.limit, self._now_us(), swept=0)) if ours",
    ),
    Mutation(
        "a merge leaves out its first fragment",
        "wal3_core.compaction.merge:Merger._merged",
        "        table = pa.concat_tables(run.kept)\n",
        "        table = pa.concat_tables(run.kept[1:] or run.kept)\n",
    ),
    Mutation(
        "the record of an installed pass is taken for an orphan",
        "wal3_core.log.collect.references:InstalledPasses.hold",
        "return self._known[token]",
        "return False",
    ),
    Mutation(
        "a tombstone that stays at the log's end is recorded as swept",
        "wal3_core.compaction.selection:find_all",
        "scope.limit if none else expired_below",
        "scope.limit if none else scope.expired_below",
    ),
    Mutation(
        "a key roll-up that was read damaged is deleted",
        "wal3_core.storage.documents.key_rollup_store:KeyRollupStore._put",
        "self._store.replace(path, data, wrong)",
        "self._store.delete(path) or self._store.create(path, data)",
    ),
    Mutation(
        "a writer refuses records without keys by whatever manifest it knows",
        "wal3_core.log.write.commit_results:CommitResultHandler._knows_keyed",
        "self._tail.seen_s >= entry.accepted_s - _KEYED_KNOWN_S",
        "entry is not None",
    ),
)


def _store() -> MemoryStore:
    return MemoryStore(shared_runtime())


# Those that the worlds seldom find, each with the test that finds it at once.
FOUND_BY_SYMPTOMS = {
    "marks are not waited for": retention,
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
