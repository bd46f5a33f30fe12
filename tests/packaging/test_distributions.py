"""What an index gets: the files of the source distribution and of the wheel, and the metadata that it shows."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
PACKAGES = {"wal3_core", "wal3_orchestration"}
REPOSITORY, SITE = "https://git.example/wal3", "https://docs.example/wal3"
TARGET = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# The tools are installed once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("distributions")]


@dataclass(frozen=True)
class Built:
    """A source distribution and a wheel."""

    sdist: Path
    wheel: Path

    def files(self) -> set[PurePosixPath]:
        with tarfile.open(self.sdist) as archive:
            return {PurePosixPath(*PurePosixPath(each.name).parts[1:]) for each in archive if each.isfile()}

    def metadata(self) -> Message:
        with ZipFile(self.wheel) as archive:
            return message_from_bytes(archive.read(f"wal3-{VERSION}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build backend, and the program that uploads what it has built."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "pip", "--quiet", "--disable-pip-version-check", "install", "hatchling>=1.27", "twine>=6.2")
    return folder / "bin"


@pytest.fixture(scope="module")
def built(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built where the project's addresses are known."""
    return build(programs, ROOT, tmp_path_factory.mktemp("dist"), WAL3_REPO_URL=REPOSITORY, WAL3_SITE_URL=SITE)


def description_of(metadata: Message) -> str:
    payload = metadata.get_payload(decode=True)
    assert isinstance(payload, bytes)
    return payload.decode()


def build(programs: Path, checkout: Path, folder: Path, **variables: str) -> Built:
    run(programs / "python", "-m", "hatchling", "build", "-d", folder, cwd=checkout, **variables)
    return Built(folder / f"wal3-{VERSION}.tar.gz", folder / f"wal3-{VERSION}-py3-none-any.whl")


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WAL3_")}
    done = subprocess.run(
        command, cwd=cwd, env=kept | variables, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_source_distribution_has_the_packages_and_none_of_what_surrounds_them(built: Built) -> None:
    files = built.files()

    assert {path.parts[0] for path in files if len(path.parts) > 1} == PACKAGES
    beside = {path.name for path in files if len(path.parts) == 1}
    assert beside == {
        *("CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "hatch_build.py"),
        *(".gitignore", "PKG-INFO"),
    }


def test_wheel_made_of_the_source_distribution_is_the_checkouts(built: Built, programs: Path, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")

    # Built again, as from an index, the addresses are not in the environment.
    again = build(programs, tmp_path / f"wal3-{VERSION}", tmp_path / "dist")

    with ZipFile(built.wheel) as first, ZipFile(again.wheel) as second:
        assert first.namelist() == second.namelist()
        assert [first.read(name) for name in first.namelist()] == [second.read(name) for name in first.namelist()]


def test_both_packages_say_that_they_have_types(built: Built) -> None:
    with ZipFile(built.wheel) as archive:
        names = archive.namelist()

    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert "Typing :: Typed" in (built.metadata().get_all("Classifier") or [])


def test_index_would_accept_and_show_both(built: Built, programs: Path) -> None:
    said = run(programs / "twine", "check", "--strict", built.sdist, built.wheel)

    assert said.count("PASSED") == 2


def test_metadata_names_licence_pythons_and_addresses(built: Built) -> None:
    metadata = built.metadata()

    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("wal3", VERSION, "Apache-2.0")
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata.get_all("Project-URL") == [
        f"Documentation, {SITE}",
        f"Source, {REPOSITORY}",
        f"Changelog, {REPOSITORY}/blob/main/CHANGELOG.md",
        f"Issues, {REPOSITORY}/issues",
    ]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])


def test_links_and_pictures_of_the_description_lead_into_the_repository(built: Built) -> None:
    description = description_of(built.metadata())
    targets = TARGET.findall(description)

    within = f"{REPOSITORY}/(blob|raw)/v{re.escape(VERSION)}/"
    paths = [re.sub(f"^{within}|#.*$", "", target) for target in targets if re.match(within, target)]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert f"]({REPOSITORY}/raw/v{VERSION}/docs/images/" in description
    assert FENCED.findall(description) == FENCED.findall((ROOT / "README.md").read_text())


def test_without_addresses_the_description_has_no_link_that_leads_nowhere(programs: Path, tmp_path: Path) -> None:
    metadata = build(programs, ROOT, tmp_path).metadata()

    description = description_of(metadata)
    assert [target for target in TARGET.findall(description) if not target.startswith(("https://", "#"))] == []
    assert "![" not in description
    assert metadata.get_all("Project-URL") is None
    assert FENCED.findall(description) == FENCED.findall((ROOT / "README.md").read_text())


def test_newest_entry_of_the_changelog_is_about_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()

    headings = re.findall(r"^## \[?([0-9][^\]\s]*)\]? - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)

    assert headings[0] == VERSION
