"""A failed run and a failed check are posted to the webhook that the environment names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dagster import (
    DagsterEventType,
    DagsterInstance,
    ExecuteInProcessResult,
    SkipReason,
    build_run_status_sensor_context,
)

from tests.orchestration.run_requests import run_request
from tests.stores import life_store
from wal3_core import CursorStore, InvalidRequestError, LogPosition, UnavailableError
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs import alerts
from wal3_orchestration.defs.alerts import TRIES_MAX, alert, post
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run, Write

    from tests.orchestration.webhook import Webhook


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "PAUSE_S", 0.0)


def _alert(instance: DagsterInstance, result: ExecuteInProcessResult, scope: StoreScope | None = None) -> str:
    """Do what the daemon does with a finished run; return what the tick says."""
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    event = next(
        event
        for event in result.all_events
        if event.event_type in (DagsterEventType.RUN_SUCCESS, DagsterEventType.RUN_FAILURE)
    )
    context = build_run_status_sensor_context("alert", event, instance, run)
    skipped = alert(scope or StoreScope(), context)
    assert isinstance(skipped, SkipReason)
    return str(skipped.skip_message)


def _break(store: ObjectStore, log: str) -> None:
    path = next(meta.path for meta in life_store(store, log).list_objects("log/"))
    life_store(store, log).delete(path)


@pytest.mark.slow
def test_failed_run_is_posted_with_its_sentence_and_what_to_do(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, webhook: Webhook
) -> None:
    _break(fleet, "gamma")
    result = run("verification_job", run_request(known[0], known[-1]))

    _alert(instance, result)

    (posted,) = webhook.posted
    assert posted.keys() == {"text"}
    lines = posted["text"].splitlines()
    assert lines[0].startswith(f"FAILURE verification_job, run {result.run_id}, store ")
    assert lines[1].startswith("verification: 1 of 3 logs: gamma: sound: 1 problem: ")
    assert any(line.startswith("- verification:sound: gamma: 1 problem: ") for line in lines)
    assert any("next command: wal3 --store" in line for line in lines)
    assert any("runbook: docs/operations.md#a-check-turns-red-the-log-is-unsound" in line for line in lines)
    assert any(
        line.startswith("  3. Run `wal3 --store ") and " repair gamma --from BACKUP_URL`" in line for line in lines
    )


@pytest.mark.slow
def test_log_that_an_earlier_run_found_damaged_is_not_posted_again(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, webhook: Webhook
) -> None:
    _break(fleet, "gamma")
    run("verification_job", run_request("gamma", "gamma"))

    result = run("verification_job", run_request(known[0], known[0]))

    assert [each.check_name for each in result.get_asset_check_evaluations() if not each.passed] == ["sound"]
    assert "nothing failed" in _alert(instance, result)
    assert webhook.requests == 0


@pytest.mark.slow
def test_failed_check_of_a_successful_run_is_posted(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance, webhook: Webhook
) -> None:
    write("alpha", fragments=8)
    CursorStore(fleet, "alpha").create("reader", LogPosition(22, 0))
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    result = run("garbage_plan_job", run_request("alpha", "alpha"))
    assert result.success

    _alert(instance, result)

    (posted,) = webhook.posted
    assert "SUCCESS garbage_plan_job" in posted["text"]
    assert "garbage_plan:little_garbage: alpha: expected at most 75% of the log to be garbage" in posted["text"]


@pytest.mark.slow
def test_run_in_which_nothing_failed_is_not_posted(
    known: list[str], run: Run, instance: DagsterInstance, webhook: Webhook
) -> None:
    result = run("manifest_job", run_request(known[0], known[-1]))

    assert "nothing failed" in _alert(instance, result)
    assert webhook.requests == 0


@pytest.mark.slow
def test_run_of_another_store_is_not_posted(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, webhook: Webhook
) -> None:
    _break(fleet, "gamma")
    result = run("verification_job", run_request(known[0], known[-1]))

    assert "is not of this store" in _alert(instance, result, StoreScope(name="other", key_prefix=("other",)))
    assert webhook.requests == 0


def test_refused_post_is_tried_again(webhook: Webhook) -> None:
    webhook.failures = TRIES_MAX - 1

    post(webhook.url, "text")

    assert webhook.posted == [{"text": "text"}]
    assert webhook.requests == TRIES_MAX


def test_post_that_stays_refused_fails_the_tick_and_names_only_the_host(webhook: Webhook) -> None:
    webhook.failures = TRIES_MAX

    with pytest.raises(UnavailableError, match=r"expected 127\.0\.0\.1 to accept an alert, .*503") as failed:
        post(webhook.url, "text")

    assert "secret-part" not in str(failed.value)


@pytest.mark.parametrize("url", ["http://example.com/hook", "ftp://example.com/hook", "example.com/hook"])
def test_post_without_encryption_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected an https URL"):
        post(url, "text")
