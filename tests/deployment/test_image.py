"""The files for Kubernetes are what its schemas and Dagster accept, and the image's steps lead to a code server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.cluster.spark_cluster import wait_until
from tests.s3_server import free_port

if TYPE_CHECKING:
    from tests.deployment.conftest import Image

pytestmark = [pytest.mark.slow, pytest.mark.repeat]

RUN_S = 120
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "dagster.md"
OLDEST, NEWEST = "1.30", "1.37"


def test_dockerfile_has_no_finding_of_hadolint(image: Image, validators: Path) -> None:
    found = _judge(validators / "hadolint", str(image.files / "Dockerfile"))

    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_manifests_have_only_what_the_published_schemas_allow(image: Image, validators: Path, version: str) -> None:
    manifests = image.files / "kubernetes.yaml"

    found = _judge(validators / "kubernetes-validate", "--strict", "-k", version, str(manifests))

    assert found.returncode == 0, found.stdout + found.stderr
    assert (found.stdout + found.stderr).count(" passed ") == len(list(yaml.safe_load_all(manifests.read_text())))


def test_image_has_what_the_code_location_and_the_instance_need(image: Image, tmp_path: Path) -> None:
    home = _home(image, tmp_path / "home", server="http://127.0.0.1:1")
    variables = {"WAL3_STORE": (tmp_path / "store").as_uri()}

    instance = image.run("dagster", "instance", "info", home=home, **variables)
    location = image.run("dagster", "definitions", "validate", "-w", "workspace.yaml", home=home, **variables)

    assert instance.returncode == 0, instance.stderr
    assert "K8sRunLauncher" in instance.stdout
    assert location.returncode == 0, location.stderr
    assert "Validation successful for code location wal3" in location.stdout + location.stderr


def test_image_serves_the_code_location_as_an_agent_of_dagster_plus_starts_it(image: Image, tmp_path: Path) -> None:
    port = str(free_port())
    home = _home(image, tmp_path / "home", server="http://127.0.0.1:1")
    where = ("-h", "127.0.0.1", "-p", port)
    command = [image.programs / "dagster", "api", "grpc", *where, "-m", "wal3_orchestration.definitions"]
    environment = image.environment(home, {"WAL3_STORE": (tmp_path / "store").as_uri()})

    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: server.poll() is not None or _healthy(image, home, where), "the code server")
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        server.kill()
        server.wait(60)


def _healthy(image: Image, home: Path, where: tuple[str, ...]) -> bool:
    return image.run("dagster", "api", "grpc-health-check", *where, home=home).returncode == 0


def test_location_in_the_documentation_is_accepted_by_dagster_plus(image: Image, validators: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(locations:.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (location,) = yaml.safe_load(block)["locations"]
    as_cli = f"from dagster_cloud_cli.config.models import load_dagster_cloud_yaml as load; print(load({block!r}))"
    context = (
        "from dagster_k8s.container_context import K8sContainerContext;"
        f" print(K8sContainerContext.create_from_config({location['container_context']!r}))"
    )

    known = _judge(validators / "python", "-c", as_cli)
    placed = _judge(image.programs / "python", "-c", context)

    assert "module_name='wal3_orchestration.definitions'" in known.stdout, known.stderr
    assert "wal3-env" in placed.stdout, placed.stderr


def _home(image: Image, home: Path, *, server: str) -> Path:
    """Make the container's home: without a Postgres, and outside of the cluster that the launcher is to use."""
    home.mkdir()
    settings: dict[str, Any] = yaml.safe_load((image.files / "dagster.yaml").read_text())
    del settings["storage"]
    launcher = settings["run_launcher"]["config"]
    launcher |= {"load_incluster_config": False, "kubeconfig_file": str(home / "kubeconfig"), "dagster_home": str(home)}
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    (home / "workspace.yaml").write_text((image.files / "workspace.yaml").read_text())
    named = {"name": "test"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{**named, "cluster": {"server": server}}],
        "users": [{**named, "user": {}}],
        "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    (home / "kubeconfig").write_text(yaml.safe_dump(config))
    return home


def _judge(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=RUN_S, check=False)
