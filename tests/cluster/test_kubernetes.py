"""The settings for Kubernetes lead Spark's client to pods that do the jobs; a killed pod is replaced and reported."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

from tests.cluster.conftest import submit
from tests.cluster.kubernetes_api import kubernetes
from tests.cluster.outcomes import check, prepare
from tests.cluster.worker_python import make_worker_python

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Machines
    from wal3_core.storage.object_store import ObjectStore

IMAGE = "registry.example/wal3-spark:4.3"


def test_pods_of_an_image_with_the_library_do_the_jobs_and_a_killed_one_is_replaced_and_reported(
    machines: Machines, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, "verify", "compact")
    # As in the image: the wheel, and what it requires.
    python = make_worker_python(tmp_path / "image", "s3", "spark")
    with zipfile.ZipFile(machines.library) as library:
        library.extractall(next((tmp_path / "image").glob("lib/*/site-packages")))
    node = {**machines.environment, "AWS_ENDPOINT_URL": machines.proxies[0].endpoint}

    with kubernetes(tmp_path / "pods", node) as (master, pods):
        conf = {
            "spark.master": master,
            "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.authenticate.driver.serviceAccountName": "wal3-spark",
            "spark.executor.instances": "2",
            "spark.pyspark.python": str(python),
            "spark.submit.pyFiles": "",
        }

        def kill(_worker: int) -> None:
            pods.kill()
            machines.release()

        with machines.in_the_middle("GET", "/log/", kill):
            found = submit(machines, store, tmp_path, "verify", "compact", **conf)
        left = pods.listed("pods", {})

    check("verify", store, found["verify"])
    check("compact", store, found["compact"])
    assert found["verify"]["retried"]["executors"] >= 1, found["verify"]
    assert left == []
    assert len(pods.asked) > 2
    for pod in pods.asked:
        (container,) = pod["spec"]["containers"]
        assert (container["image"], pod["spec"]["serviceAccountName"]) == (IMAGE, "wal3-spark")
