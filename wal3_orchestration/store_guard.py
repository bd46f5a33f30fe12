"""Checks that the store is the one that this Dagster instance looks after.

The partitions belong to the instance, so the instance remembers which store they describe. A different
store, or the loss of many logs at once, most likely means a wrong URL or a volume that is not mounted:
nothing is changed until an operator accepts it (defs/acceptance.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import Failure, SensorEvaluationContext

from wal3_core.fleet.identity import store_identity
from wal3_core.options import RetryOptions
from wal3_core.storage.retrying import timeout_s_of
from wal3_orchestration.runbook import Section, address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import DagsterInstance

    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.resources import StoreResource
    from wal3_orchestration.scope import Context, Scope

ACCEPT_JOB = "accept_store_job"
ACCEPT_OP = "accepted_store"
_KEY = "wal3/store_id"
_NAMED_MAX = 10
_PATIENCE_S = 5.0


def remembered(scope: Scope, instance: DagsterInstance) -> str | None:
    """Return the identity of the store that the instance looks after; None until it has seen a log."""
    key = _key(scope)
    return instance.daemon_cursor_storage.get_cursor_values({key}).get(key)


def remember(scope: Scope, instance: DagsterInstance, store_id: str) -> None:
    """Record which store the instance looks after."""
    instance.daemon_cursor_storage.set_cursor_values({_key(scope): store_id})


def remember_first(scope: Scope, instance: DagsterInstance, store: ObjectStore) -> None:
    """Record the store, which has logs, as the one that the instance looks after, unless it knows one already."""
    if remembered(scope, instance) is None:
        identity = store_identity(store, create=True)
        assert identity is not None
        remember(scope, instance, identity)


def open_known(scope: Scope, context: Context) -> ObjectStore:
    """Open the scope's store; Failure when it is not the store that the instance looks after."""
    store = scope.store(context).open()
    patience_s = timeout_s_of(store.url)
    if isinstance(context, SensorEvaluationContext):
        # The first request of a tick: if the store is silent, fail before Dagster ends the tick, after a minute.
        patience_s = min(_PATIENCE_S, patience_s)
    require_known(scope, context.instance, store, patience_s)
    return store


def require_known(scope: Scope, instance: DagsterInstance, store: ObjectStore, patience_s: float) -> None:
    """Refuse a store whose identity is not the one that the instance remembers, or that has lost its identity."""
    expected = remembered(scope, instance)
    if expected is None:
        return
    found = store_identity(store, retry=RetryOptions(timeout_s=patience_s))
    if found == expected:
        return
    problem = (
        "no identity: check that WAL3_STORE is right and the store is mounted; if only the identity is lost,"
        " create a new one with wal3 store-id --create"
        if found is None
        else f"store {found}: check that WAL3_STORE is right"
    )
    where = address(scope, Section.DISCOVERY)
    message = (
        f"store {store.url}: expected store {expected}, which this instance looks after, found {problem}. Nothing was"
        f" changed. If this store is meant, launch {scope.named(ACCEPT_JOB)} with what wal3 store-id prints ({where})"
    )
    raise Failure(message, allow_retries=False)


def require_few_lost(
    scope: Scope, store: ObjectStore, known: Sequence[str], vanished: Sequence[str], limits: StoreResource
) -> None:
    """Refuse the loss of all known logs, or of more than ``logs_lost_max`` that exceed the fraction of them."""
    many = len(vanished) > limits.logs_lost_max and len(vanished) > limits.logs_lost_fraction_max * len(known)
    if not vanished or not (many or len(vanished) == len(known)):
        return
    more = " and more" if len(vanished) > _NAMED_MAX else ""
    message = (
        f"store {store.url}: expected most of the {len(known)} known logs, found {len(vanished)} of them gone:"
        f" {', '.join(vanished[:_NAMED_MAX])}{more}. Nothing was changed. If they were destroyed, launch"
        f" {scope.named(ACCEPT_JOB)} with vanished: {len(vanished)} ({address(scope, Section.DISCOVERY)})"
    )
    raise Failure(message, allow_retries=False)


def _key(scope: Scope) -> str:
    return f"{_KEY}/{scope.name}" if scope.name else _KEY
