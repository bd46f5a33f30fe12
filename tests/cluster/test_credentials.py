"""Which credentials executors use: those of their machine, of the configuration, or of the profile in a URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.cluster.conftest import Machines, submit
from tests.cluster.machines import PROFILE, PROFILE_KEY, ROLE_KEY
from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import JOBS, READ
from wal3_core.spark import verify_logs
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


EXECUTORS_KEY = "key-of-the-executors"


@pytest.mark.spark
def test_executors_take_the_role_of_their_machine_or_the_profile_of_the_url(
    machines: Machines, spark: SparkSession, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(store, "verify")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", machines.environment["AWS_SHARED_CREDENTIALS_FILE"])

    by_role = machines.keys_used(lambda: check("verify", store, JOBS["verify"](spark, store.url, "")))
    url = f"{store.url}?profile={PROFILE}"
    by_profile = machines.keys_used(lambda: check("verify", store, JOBS["verify"](spark, url, "")))

    assert (by_role, by_profile) == ({ROLE_KEY}, {PROFILE_KEY})


def test_executors_take_the_credentials_in_spark_s_configuration(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, "verify")
    given = {"AWS_ACCESS_KEY_ID": EXECUTORS_KEY, "AWS_SECRET_ACCESS_KEY": "secret"}
    conf = {f"spark.executorEnv.{name}": value for name, value in given.items()}

    used = machines.keys_used(
        lambda: check("verify", store, submit(machines, store, tmp_path, "verify", **conf)["verify"])
    )

    assert used == {EXECUTORS_KEY}


@pytest.mark.spark
def test_executors_without_access_are_named_as_the_cause(
    machines: Machines, spark: SparkSession, store: ObjectStore
) -> None:
    prepare(store, "verify")

    with machines.refusing(ROLE_KEY):
        report, _ = verify_logs(spark, store.url, READ)
        with pytest.raises(PySparkException, match="StoreDeniedError: .*403"):
            spark.read.format("wal3").options(store=store.url, log=READ[0]).load().collect()

    assert not report.sound
    assert "403" in report.problems[0].message
    assert all(each.sound for each in verify_logs(spark, store.url, READ))
