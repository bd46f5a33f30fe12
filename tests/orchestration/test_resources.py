from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from dagster_aws.s3 import S3Resource

from wal3_core import LogWriter, list_logs
from wal3_orchestration.resources import CollectionResource, RollUpResource, StoreResource, spark_resource

ROOT = Path(__file__).parent.parent.parent


def test_store_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAL3_STORE", "s3://bucket/prefix")

    assert StoreResource.from_environment().url == "s3://bucket/prefix"


@pytest.mark.slow
def test_code_location_without_a_store_fails_to_load_and_names_the_variable() -> None:
    """Regression: it looked after an empty folder in its working directory."""
    environment = {name: value for name, value in os.environ.items() if name != "WAL3_STORE"}

    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 1
    assert "WAL3_STORE: expected the store's URL, found none: set it for the code location" in done.stdout + done.stderr


def test_s3_store_is_opened_with_the_session_and_endpoint_of_the_s3_resource(
    s3_url: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = boto3.session.Session()
    credentials = session.get_credentials()
    assert credentials is not None
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3 = S3Resource(
        endpoint_url=s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
    )

    store = StoreResource(store=s3_url, s3=s3).open()
    LogWriter.create(store, "alpha")

    assert list(list_logs(store)) == ["alpha"]


def test_endpoint_in_the_url_wins_over_the_resources() -> None:
    url = "s3://bucket/prefix?endpoint=http://one&region=r"

    assert StoreResource(store=url, s3=S3Resource(endpoint_url="http://two")).url == url


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (CollectionResource, {"planned_s_max": float("nan")}),
        (CollectionResource, {"compactions_max": -1}),
        (RollUpResource, {"age_s_max": -0.5}),
        (RollUpResource, {"late_s_max": float("nan")}),
        (StoreResource, {"logs_lost_fraction_max": float("nan"), "s3": S3Resource()}),
    ],
)
def test_limit_that_is_none_is_refused_by_name(kind: Callable[..., object], given: dict[str, Any]) -> None:
    name, value = next(iter(given.items()))
    with pytest.raises(ValueError, match=f"{name}: expected a number that is not negative, found {value}"):
        kind(**given)


def test_spark_runs_here_unless_the_environment_names_a_cluster() -> None:
    laptop = spark_resource({}).spark_config
    cluster = spark_resource(
        {"WAL3_SPARK_MASTER": "spark://host:7077", "WAL3_SPARK_CONF": '{"spark.executor.memory": "4g"}'}
    ).spark_config

    assert (laptop["spark.master"], laptop["spark.driver.host"]) == ("local[2]", "127.0.0.1")
    assert (cluster["spark.master"], cluster["spark.executor.memory"]) == ("spark://host:7077", "4g")
    assert "spark.driver.host" not in cluster
