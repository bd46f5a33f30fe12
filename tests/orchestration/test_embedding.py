"""The definitions of several stores beside a project's own, in one code location."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    Definitions,
    EnvVar,
    RunRequest,
    SensorResult,
    asset,
    build_sensor_context,
)
from dagster_aws.s3 import S3Resource

from wal3_core import InvalidRequestError, LogWriter, open_store
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.embedding import LogLineage, wal3_definitions
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.resources import StoreResource, without_password

SILENT = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@asset
def manifest() -> None:
    """An asset of the project's own, with the name of one of ours."""


def _write(url: str, log: str) -> None:
    with LogWriter.open_or_create(open_store(url), log) as writer:
        writer.append_many([b"a record"])


def _discover(instance: DagsterInstance, name: str, url: str) -> list[RunRequest]:
    """Tick the discovery of one store, as the daemon does."""
    resources = {f"{name}_store": StoreResource(store=url, s3=S3Resource())}
    with build_sensor_context(instance, resources=resources) as context:
        result = discover(StoreScope(name=name, key_prefix=(name,)), context)
    assert isinstance(result, SensorResult)
    for request in result.dynamic_partitions_requests or ():
        if isinstance(request, AddDynamicPartitionsRequest):
            instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    return list(result.run_requests or ())


@pytest.mark.slow
def test_two_stores_and_a_project_s_own_asset_live_in_one_code_location(
    tmp_path: Path, instance: DagsterInstance
) -> None:
    urls = {name: (tmp_path / name).as_uri() for name in ("orders", "audit")}
    project = Definitions.merge(
        *(wal3_definitions(url, name=name) for name, url in urls.items()), Definitions(assets=[manifest])
    )
    Definitions.validate_loadable(project)
    _write(urls["orders"], "shared")
    _write(urls["audit"], "shared")
    _write(urls["audit"], "only-audited")

    requests = {name: _discover(instance, name, url) for name, url in urls.items()}
    for name, (request,) in requests.items():
        looked = project.resolve_job_def(request.job_name or "").execute_in_process(
            instance=instance,
            run_config={**SILENT, **request.run_config},
            partition_key=request.partition_key,
            tags=request.tags,
        )
        verified = project.resolve_job_def(f"{name}_verification_sweep").execute_in_process(
            instance=instance, run_config=SILENT
        )
        assert looked.success
        assert verified.success

    assert instance.get_dynamic_partitions("orders_log") == ["shared"]
    assert instance.get_dynamic_partitions("audit_log") == ["only-audited", "shared"]
    assert {
        key.to_user_string(): instance.get_materialized_partitions(key)
        for key in (AssetKey([name, asset]) for name in urls for asset in ("manifest", "verification"))
    } == {
        "orders/manifest": {"shared"},
        "orders/verification": {"shared"},
        "audit/manifest": {"only-audited", "shared"},
        "audit/verification": {"only-audited", "shared"},
    }
    assert requests["orders"][0].tags["wal3/log"] == "orders:shared"
    assert instance.get_materialized_partitions(AssetKey("manifest")) == set()


def test_key_prefix_and_owners_are_the_project_s() -> None:
    project = wal3_definitions("memory:a", name="a", key_prefix=["team", "logs"], owners=["storage@example.com"])

    specs = list(project.resolve_all_asset_specs())

    assert {tuple(spec.key.path[:-1]) for spec in specs} == {("team", "logs")}
    assert {tuple(spec.owners) for spec in specs} == {("storage@example.com",)}


def test_url_comes_from_a_variable_of_the_project_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORDERS_STORE", tmp_path.as_uri())

    project = wal3_definitions(EnvVar("ORDERS_STORE"), name="a")

    assert {spec.metadata["store"] for spec in project.resolve_all_asset_specs()} == {tmp_path.as_uri()}


def test_name_that_dagster_would_not_accept_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="name: expected letters, digits and _, .* found 'my-store'"):
        wal3_definitions("memory:a", name="my-store")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://key:secret@bucket/prefix", "s3://bucket/prefix"),
        (
            "s3://bucket?endpoint=http://key:secret@host:9000&region=r",
            "s3://bucket?endpoint=http://host:9000&region=r",
        ),
        ("file:///a/b?lock_wait_s=5", "file:///a/b?lock_wait_s=5"),
        ("memory:one", "memory:one"),
    ],
)
def test_shown_url_has_no_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_log_stands_between_its_producers_and_consumers_in_the_graph() -> None:
    @asset(deps=[AssetKey(["orders", "logs", "team", "orders"])])
    def report() -> None:
        """An asset of the project's own that reads the log."""

    lineage = [
        LogLineage(log="team/orders", producers=("shop/checkout",), consumers=("dashboard",)),
        LogLineage(log="audit", consumers=("dashboard",)),
    ]
    project = Definitions.merge(
        wal3_definitions("memory:none", name="orders", lineage=lineage), Definitions(assets=[report])
    )

    Definitions.validate_loadable(project)
    graph = project.resolve_asset_graph()
    orders, audit = AssetKey(["orders", "logs", "team", "orders"]), AssetKey(["orders", "logs", "audit"])
    assert graph.get(orders).parent_keys == {AssetKey(["shop", "checkout"])}
    assert graph.get(orders).child_keys == {AssetKey("report"), AssetKey("dashboard"), AssetKey(["orders", "manifest"])}
    assert graph.get(AssetKey("dashboard")).parent_keys == {orders, audit}
    assert graph.get(AssetKey(["orders", "manifest"])).parent_keys == {orders, audit}
    assert not graph.get(orders).is_executable
