"""A store that a project declares in YAML has all of its definitions, with the fields that are given there."""

from __future__ import annotations

import pytest
from dagster import AssetKey, ComponentTree, Definitions, build_resources

from wal3_orchestration.component import Wal3Store


@pytest.mark.slow
def test_store_in_yaml_has_its_definitions_under_its_name_with_its_limits() -> None:
    component = Wal3Store.resolve_from_yaml(
        """
        store: "memory:orders"
        name: orders
        key_prefix: [sales]
        owners: ["team:payments"]
        collection: {queue_dead_max: 7}
        """
    )

    defs = component.build_defs(ComponentTree.for_test().load_context)

    Definitions.validate_loadable(defs)
    assert AssetKey(["sales", "manifest"]) in {spec.key for spec in defs.resolve_all_asset_specs()}
    with build_resources(dict(defs.resources or {})) as made:
        assert made.orders_collection.queue_dead_max == 7
    assert defs.resolve_sensor_def("orders_discovery").metadata["store"].value == "memory:orders"


@pytest.mark.slow
def test_store_in_yaml_without_a_url_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL3_STORE", "memory:here")

    defs = Wal3Store.resolve_from_yaml("{}").build_defs(ComponentTree.for_test().load_context)

    with build_resources(dict(defs.resources or {})) as made:
        assert made.store.require_url() == "memory:here"
