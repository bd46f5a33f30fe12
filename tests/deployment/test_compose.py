"""The services of deploy/compose do what its page says: their commands, as processes, with the image's programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from dagster import DagsterInstance

from tests.cluster.spark_cluster import wait_until
from tests.s3_server import free_port, s3_server

if TYPE_CHECKING:
    from tests.deployment.conftest import Image

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "compose"
DOCKERFILE = ROOT / "wal3_orchestration" / "deployment" / "templates" / "Dockerfile"
IN_CONTAINERS = ("code", "daemon", "webserver", "writer")
RUN_S, SEEN_S = 120, 240
_COPIED = re.compile(r"^COPY (.*) \./$", re.MULTILINE)


@dataclass(frozen=True)
class Services:
    """The services of the file, where each container is this machine and /opt/dagster/home a folder of it."""

    image: Image
    home: Path
    services: Mapping[str, dict[str, Any]]

    def command(self, name: str) -> list[str]:
        command = self.services[name]["command"]
        words = shlex.split(command) if isinstance(command, str) else command
        # In the file, $$ is a dollar.
        return [word.replace("$$", "$") for word in words]

    def environment(self, name: str) -> dict[str, str]:
        return self.image.environment(self.home, self.services[name]["environment"])

    def run(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment(name),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        with (self.home.parent / name).open("wb") as output:
            process = subprocess.Popen(
                self.command(name),
                env=self.environment(name),
                cwd=self.home,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield
            assert process.poll() is None, self.said(name)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def said(self, name: str) -> str:
        return (self.home.parent / name).read_text()[-3000:]


@pytest.fixture
def services(image: Image, tmp_path: Path) -> Iterator[tuple[Services, int]]:
    """The file's services on an S3 server, and the port of Dagster's pages."""
    home, code, pages = tmp_path / "home", str(free_port()), free_port()
    home.mkdir()
    with s3_server() as endpoint:
        here = {
            "http://s3:4566": endpoint,
            "/opt/dagster/home": str(home),
            "/etc/wal3/workspace.yaml": str(tmp_path / "workspace.yaml"),
            "0.0.0.0": "127.0.0.1",
            "4000": code,
            "--port 3000": f"--port {pages}",
            "host: code": "host: 127.0.0.1",
        }
        texts = {}
        for name in ("compose.yaml", "workspace.yaml"):
            text = (FOLDER / name).read_text()
            for inside, outside in here.items():
                text = text.replace(inside, outside)
            texts[name] = text
        (tmp_path / "workspace.yaml").write_text(texts["workspace.yaml"])
        yield Services(image, home, yaml.safe_load(texts["compose.yaml"])["services"]), pages


def _next_offset(services: Services) -> int:
    listed = services.run("writer", "wal3", "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    (log,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert log["log"] == "readings"
    return int(log["next_offset"])


def _located(port: int) -> bool:
    """Return whether Dagster's pages show the code location without an error."""
    query = "{workspaceOrError {... on Workspace {locationEntries {name locationOrLoadError {__typename}}}}}"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql",
        json.dumps({"query": query}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            (entry,) = json.load(answer)["data"]["workspaceOrError"]["locationEntries"]
    except OSError:
        return False
    return entry == {"name": "wal3", "locationOrLoadError": {"__typename": "RepositoryLocation"}}


@pytest.mark.slow
@pytest.mark.repeat
def test_log_of_the_writer_grows_and_dagster_discovers_it(services: tuple[Services, int]) -> None:
    compose, port = services
    # As when it is brought up a second time.
    for _ in range(2):
        done = compose.run("setup", *compose.command("setup"))
        assert done.returncode == 0, done.stdout + done.stderr
    kind, *health = compose.services["code"]["healthcheck"]["test"]
    assert kind == "CMD"

    with ExitStack() as stack:
        for name in ("writer", "code"):
            stack.enter_context(compose.running(name))
        wait_until(lambda: _next_offset(compose) > 1, "the first records", deadline_s=SEEN_S)
        wait_until(lambda: compose.run("code", *health).returncode == 0, compose.said("code"), deadline_s=SEEN_S)
        for name in ("daemon", "webserver"):
            stack.enter_context(compose.running(name))
        wait_until(lambda: _located(port), "the code location", deadline_s=SEEN_S)
        with DagsterInstance.from_config(str(compose.home)) as instance:
            wait_until(lambda: instance.get_dynamic_partitions("log") == ["readings"], "discovery", deadline_s=SEEN_S)
        before = _next_offset(compose)
        wait_until(lambda: _next_offset(compose) > before, "further records", deadline_s=SEEN_S)
        assert not any("superseded" in compose.said(name) for name in IN_CONTAINERS)


@pytest.mark.slow
@pytest.mark.repeat
@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("compose-spec", "deploy/compose/compose.yaml"),
        ("github-workflows", ".github/workflows/tests.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/bug.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/proposal.yml"),
    ],
)
def test_file_has_only_what_its_published_schema_allows(validators: Path, schema: str, name: str) -> None:
    found = subprocess.run(
        [validators / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / name],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )

    assert found.returncode == 0, found.stdout + found.stderr


def test_image_is_built_of_what_the_checkout_gives_it() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    builds = [compose["services"][name]["build"] for name in IN_CONTAINERS]
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    (copied,) = _COPIED.findall(DOCKERFILE.read_text())

    for build in builds:
        assert (FOLDER / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == DOCKERFILE
        # Else pip would get the template's placeholder.
        assert build["args"] == {"PACKAGES": ""}
    assert set(copied.split()) <= set(given)
    assert all((ROOT / name).exists() for name in given)


def test_server_of_the_file_is_the_one_of_the_tests() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())

    (installed,) = re.findall(r"ministack==\S+", compose["services"]["s3"]["build"]["dockerfile_inline"])
    assert installed in (ROOT / "Makefile").read_text()
