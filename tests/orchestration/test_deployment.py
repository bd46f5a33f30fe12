"""The files that ``init`` writes are accepted by what reads them."""

from __future__ import annotations

import base64
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from dagster import DagsterInstance

from wal3_core import InvalidRequestError
from wal3_orchestration.__main__ import main
from wal3_orchestration.deployment import Deployment, quoted, settings

ROOT = Path(__file__).parent.parent.parent
PLATFORMS = ("--postgres", "--systemd", "--compose", "--kubernetes")


def _init(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["init", str(folder), "--store", (folder.parent / "store").as_uri(), *options])


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell that has loaded the file."""
    script = f". '{folder}/wal3.env'; env -0"
    printed = subprocess.run(
        ["/bin/sh", "-ac", script], capture_output=True, text=True, check=True, timeout=600, env={}
    )
    return dict(line.split("=", 1) for line in printed.stdout.split("\0") if line)


def _dagster(environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dagster", *arguments],
        cwd=environment["DAGSTER_HOME"],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("dagster", marks=pytest.mark.repeat), "a folder with spaces"])
def test_new_folder_is_a_dagster_home_whose_workspace_loads(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name

    outcome = _init(folder)

    assert outcome.exit_code == 0, outcome.output
    assert "dg dev -w " in outcome.output
    assert "instance info" not in outcome.output
    environment = _environment(folder)
    assert environment["DAGSTER_HOME"] == str(folder)
    assert environment["WAL3_STORE"] == (tmp_path / "store").as_uri()
    assert "default_limit: 1" in _dagster(environment, "instance", "info")
    loaded = _dagster(environment, "definitions", "validate", "-w", str(folder / "workspace.yaml"))
    assert "Validation successful for code location wal3" in loaded
    with DagsterInstance.from_config(str(folder)) as instance:
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


# Its processes have everything loaded when the pipe is closed, and open the instance at once.
_OPENERS = """import os, sys
from dagster import DagsterInstance
gate, hold = os.pipe()
children = []
for _ in range(6):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(hold)
        os.read(gate, 1)
        with DagsterInstance.get() as instance:
            instance.get_run_records(limit=1), instance.get_asset_keys(limit=1), instance.all_instigator_state()
        os._exit(0)
os.close(hold)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


@pytest.mark.slow
@pytest.mark.parametrize("_round", [0, pytest.param(1, marks=pytest.mark.repeat)])
def test_new_folder_is_opened_by_several_processes_at_once(tmp_path: Path, _round: int) -> None:
    folder = tmp_path / "dagster"
    assert _init(folder).exit_code == 0

    done = subprocess.run(
        [sys.executable, "-c", _OPENERS],
        env={**os.environ, "DAGSTER_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_databases_in_postgres_are_left_to_one_first_command(tmp_path: Path) -> None:
    outcome = _init(tmp_path / "dagster", "--postgres")

    assert outcome.exit_code == 0, outcome.output
    assert "dagster instance info" in outcome.output
    assert list((tmp_path / "dagster").rglob("*.db")) == []


def test_bucket_is_named_without_credentials_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    folder = tmp_path / "dagster"

    outcome = CliRunner().invoke(main, ["init", str(folder), "--store", "s3://bucket/prefix", "--postgres"])

    assert outcome.exit_code == 0, outcome.output
    assert _environment(folder)["WAL3_STORE"] == "s3://bucket/prefix"


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    _init(tmp_path / "dagster", "--postgres")

    assert stat.S_IMODE((tmp_path / "dagster" / "wal3.env").stat().st_mode) == 0o600


@pytest.mark.slow
def test_existing_file_is_not_overwritten_without_force(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text("mine")

    refused = _init(folder)
    assert (refused.exit_code, sorted(path.name for path in folder.iterdir())) == (1, ["dagster.yaml"])
    assert f"{folder / 'dagster.yaml'}: expected no such file; --force overwrites it" in refused.output
    assert (folder / "dagster.yaml").read_text() == "mine"

    forced = _init(folder, "--force")
    assert forced.exit_code == 0
    assert (folder / "dagster.yaml").read_text() == settings()


def test_unknown_kind_of_store_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["init", str(tmp_path / "dagster"), "--store", "s4://bucket"])

    assert outcome.exit_code == 1
    assert "s4" in outcome.output
    assert not (tmp_path / "dagster").exists()


@pytest.mark.parametrize("option", PLATFORMS)
def test_every_file_of_a_platform_is_complete(tmp_path: Path, option: str) -> None:
    folder = tmp_path / "dagster"

    outcome = _init(folder, option, "--postgres")

    assert outcome.exit_code == 0, outcome.output
    written = {path.name: path.read_text() for path in folder.iterdir()}
    assert [name for name, text in written.items() if re.search(r"@[A-Z_]+@", text)] == []
    for name in written:
        assert f"wrote {folder / name}" in outcome.output
        if name.endswith((".yaml", ".yml")):
            assert all(_documents(folder / name))


def test_postgres_is_configured_by_variables_that_the_file_sets(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    _init(folder, "--postgres")

    (instance,) = _documents(folder / "dagster.yaml")
    names = {value["env"] for value in instance["storage"]["postgres"]["postgres_db"].values()}

    assert names == {f"DAGSTER_PG_{name}" for name in ("HOST", "PORT", "DB", "USERNAME", "PASSWORD")}
    assert names <= _environment(folder).keys()


def test_compose_services_and_kubernetes_manifests_are_the_webserver_and_one_daemon(tmp_path: Path) -> None:
    _init(tmp_path / "compose", "--compose")
    _init(tmp_path / "kubernetes", "--kubernetes")

    (compose,) = _documents(tmp_path / "compose" / "docker-compose.yml")
    manifests = _documents(tmp_path / "kubernetes" / "kubernetes.yaml")

    assert compose["services"].keys() == {"postgres", "tables", "webserver", "daemon", "code"}
    assert compose["services"]["webserver"]["ports"] == ["127.0.0.1:3000:3000"]
    kinds = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert ("Deployment", "wal3-dagster-webserver") in kinds
    daemon = manifests[kinds.index(("Deployment", "wal3-dagster-daemon"))]
    assert (daemon["spec"]["replicas"], daemon["spec"]["strategy"]) == (1, {"type": "Recreate"})
    (instance,) = _documents(tmp_path / "kubernetes" / "dagster.yaml")
    assert instance["run_launcher"]["class"] == "K8sRunLauncher"


@pytest.mark.parametrize(
    ("option", "file", "host"),
    [
        ("--systemd", "wal3-dagster-code.service", "127.0.0.1"),
        ("--compose", "docker-compose.yml", "code"),
        ("--kubernetes", "kubernetes.yaml", "wal3-dagster-code"),
    ],
)
def test_webserver_and_daemon_ask_the_code_server_that_the_folder_starts(
    tmp_path: Path, option: str, file: str, host: str
) -> None:
    folder = tmp_path / "dagster"
    _init(folder, option)

    (workspace,) = _documents(folder / "workspace.yaml")
    (server,) = [each["grpc_server"] for each in workspace["load_from"]]

    started = (folder / file).read_text()
    assert (server["host"], server["location_name"]) == (host, "wal3")
    assert f"{host}:" in started or f"--host {host}" in started or f"name: {host}" in started
    assert str(server["port"]) in started
    assert "@" not in (folder / "workspace.yaml").read_text()


def _can(*command: str) -> bool:
    """Return whether a program is here and knows a command."""
    return (
        shutil.which(command[0]) is not None
        and not subprocess.run(command, capture_output=True, check=False, timeout=600).returncode
    )


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    not _can("docker", "compose", "version"),
    reason="needs docker compose: apt-get install docker-ce-cli docker-compose-plugin (Docker's repository)",
)
def test_compose_file_is_accepted_by_docker(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    _init(folder, "--compose")
    env = folder / "wal3.env"
    env.write_text(env.read_text().replace("DAGSTER_PG_PASSWORD=", "DAGSTER_PG_PASSWORD=secret"))

    shown = yaml.safe_load(_run(folder, "docker", "compose", "--env-file", "wal3.env", "config"))

    assert shown["services"]["daemon"]["environment"]["WAL3_STORE"] == (tmp_path / "store").as_uri()
    assert shown["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"] == "secret"


@pytest.mark.slow
@pytest.mark.skipif(
    not _can("kubectl", "version", "--client"), reason="needs kubectl: apt-get install kubernetes-client"
)
def test_kubernetes_files_are_accepted_and_the_secret_holds_the_values_as_given(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    CliRunner().invoke(main, ["init", str(folder), "--store", "s3://bucket/prefix?region=us-east-1", "--kubernetes"])
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["kubernetes.yaml"]}))
    offline = ("--dry-run=client", "-o", "yaml")

    secret = yaml.safe_load(
        _run(folder, "kubectl", "create", "secret", "generic", "wal3-env", "--from-env-file=wal3.env", *offline)
    )
    files = ("--from-file=dagster.yaml", "--from-file=workspace.yaml")
    config = yaml.safe_load(_run(folder, "kubectl", "create", "configmap", "wal3-dagster", *files, *offline))
    built = list(yaml.safe_load_all(_run(folder, "kubectl", "kustomize", ".")))

    assert base64.b64decode(secret["data"]["WAL3_STORE"]).decode() == "s3://bucket/prefix?region=us-east-1"
    assert config["data"].keys() == {"dagster.yaml", "workspace.yaml"}
    assert len(built) == len(_documents(folder / "kubernetes.yaml"))


def test_kubernetes_manifests_refer_only_to_what_they_or_the_commands_create(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    outcome = _init(folder, "--kubernetes")

    manifests = _documents(folder / "kubernetes.yaml")

    deployments = [each for each in manifests if each["kind"] == "Deployment"]
    (account,) = [each["metadata"]["name"] for each in manifests if each["kind"] == "ServiceAccount"]
    services = [each["spec"] for each in manifests if each["kind"] == "Service"]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in deployments]
    assert all(service["selector"] in labels for service in services)
    for deployment, label in zip(deployments, labels, strict=True):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert deployment["spec"]["selector"]["matchLabels"] == label
        assert pod["serviceAccountName"] == account
        (volume,) = pod["volumes"]
        assert f"kubectl create configmap {volume['configMap']['name']} " in outcome.output
        assert f"kubectl create secret generic {container['envFrom'][0]['secretRef']['name']} " in outcome.output
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"]}
        assert {mount["subPath"] for mount in container["volumeMounts"]} == {"dagster.yaml", "workspace.yaml"}


def test_image_installs_the_wheel_beside_it_as_no_index_has_one(tmp_path: Path) -> None:
    _init(tmp_path / "compose", "--compose")
    kubernetes = _init(tmp_path / "kubernetes", "--kubernetes")

    texts = {name: (tmp_path / name / "Dockerfile").read_text() for name in ("compose", "kubernetes")}

    for text in texts.values():
        assert '"$(ls /context/wal3-*.whl || echo /context)[postgres]" $PACKAGES' in text
    assert 'ARG PACKAGES=""' in texts["compose"]
    assert f'ARG PACKAGES="dagster-k8s=={version("dagster-aws")}"' in texts["kubernetes"]
    assert "pip wheel --no-deps --wheel-dir . CHECKOUT" in kubernetes.output


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze: apt-get install systemd")
def test_units_are_accepted_by_systemd(tmp_path: Path) -> None:
    folder = tmp_path / "dagster"
    _init(folder, "--systemd")

    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(folder.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("value", "expected"), [("s3://b/p?region=r", '"s3://b/p?region=r"'), ("/a/b", "/a/b")])
def test_value_is_quoted_if_a_shell_would_change_it(value: str, expected: str) -> None:
    assert quoted(value) == expected


@pytest.mark.parametrize("value", ["$HOME", "a`b`", 'a"b', "a\nb", "100%"])
def test_value_that_is_read_differently_by_each_reader_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected a value without"):
        quoted(value)


def test_deployment_without_platforms_is_three_files(tmp_path: Path) -> None:
    files = Deployment(home=tmp_path, store="memory:a").files()

    assert {path.name for path in files} == {"dagster.yaml", "workspace.yaml", "wal3.env"}
