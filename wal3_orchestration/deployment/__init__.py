"""A deployment of the code location: its files, from the templates beside this module, and its databases."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from dagster import DagsterInstance

from wal3_core import InvalidRequestError


def create_databases(home: Path) -> None:
    """Create the SQLite databases of the instance in a folder: of runs, events and schedules.

    Otherwise the first command creates them; of two that start at once, one fails, or both leave a
    database that no command opens again.
    """
    with DagsterInstance.from_config(str(home)) as instance:
        instance.get_run_records(limit=1)
        instance.get_asset_keys(limit=1)
        instance.all_instigator_state()


ENV_FILE = "wal3.env"
# The units of systemd.
SERVICES = ("code", "webserver", "daemon")
_WHEEL = "pip wheel --no-deps --wheel-dir . CHECKOUT   # the image installs the wheel of your checkout of wal3"
_PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+-]*")
# $ and ` are expanded by a shell and docker compose, % by systemd's units.
_UNQUOTABLE = re.compile("[\"'$%`\\\\\n\r]")


def template(name: str) -> str:
    """Return the text of a template."""
    return (files("wal3_orchestration.deployment") / "templates" / name).read_text(encoding="utf-8")


def settings() -> str:
    """Return dagster.yaml: the instance's pools, limits and retention, with its storage in SQLite."""
    return template("dagster.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What to write: the folder, which is DAGSTER_HOME, the store's URL, the UI's port, and for which platforms."""

    home: Path
    store: str
    port: int = 3000
    postgres: bool = False
    systemd: bool = False
    compose: bool = False
    kubernetes: bool = False

    @property
    def in_postgres(self) -> bool:
        """Whether Dagster's storage is Postgres: containers do not share a folder, so they need a server."""
        return self.postgres or self.compose or self.kubernetes

    @property
    def _code_host(self) -> str | None:
        """Where the code server listens; None if `dg dev` starts it, as it does with the webserver and the daemon."""
        if self.compose:
            return "code"
        return "wal3-dagster-code" if self.kubernetes else "127.0.0.1" if self.systemd else None

    def files(self) -> dict[Path, str]:
        """Return each file's text."""
        postgres = self.in_postgres
        texts = {
            "dagster.yaml": settings()
            + (template("postgres.yaml") if postgres else "")
            + (template("kubernetes_runs.yaml") if self.kubernetes else ""),
            "workspace.yaml": template("workspace.yaml" if self._code_host is None else "served_workspace.yaml"),
            ENV_FILE: template(ENV_FILE) + (template("postgres.env") if postgres else ""),
        }
        if self.systemd:
            texts |= {f"wal3-dagster-{name}.service": template(f"{name}.service") for name in SERVICES}
        if self.compose or self.kubernetes:
            texts["Dockerfile"] = template("Dockerfile")
        if self.compose:
            texts["docker-compose.yml"] = template("docker-compose.yml")
        if self.kubernetes:
            texts["kubernetes.yaml"] = template("kubernetes.yaml")
        # kubectl takes the quotes of an env file for part of the value.
        bare = {ENV_FILE} if self.kubernetes else set()
        return {self.home / name: self._filled(text, bare=name in bare) for name, text in texts.items()}

    def _filled(self, text: str, *, bare: bool) -> str:
        values = {
            "HOME": quoted(str(self.home)),
            "STORE": quoted(self.store),
            "ENV_FILE": quoted(str(self.home / ENV_FILE)),
            "BIN": quoted(str(Path(sys.executable).parent)),
            "PORT": str(self.port),
            "CODE_HOST": self._code_host or "",
            "CODE_PORT": str(self.port + 1),
            "PACKAGES": f"dagster-k8s=={version('dagster-aws')}" if self.kubernetes else "",
        }
        for name, value in values.items():
            text = text.replace(f"@{name}@", value.strip('"') if bare else value)
        return text

    def commands(self) -> list[str]:
        """Return the commands to go on with."""
        env, home = quoted(str(self.home / ENV_FILE)), quoted(str(self.home))
        load = f"set -a; . {env}; set +a"
        # Postgres has no tables yet: one command makes them, before several start at once.
        load_and_create = [load, f"{_program('dagster')} instance info"] if self.postgres else [load]
        if self.compose:
            return [f"cd {home}", _WHEEL, f"docker compose --env-file {ENV_FILE} up --build --detach"]
        if self.kubernetes:
            return [
                f"cd {home}",
                _WHEEL,
                "docker build --tag wal3-dagster .   # and push it to where the cluster finds it",
                f"kubectl create secret generic wal3-env --from-env-file={ENV_FILE}",
                "kubectl create configmap wal3-dagster --from-file=dagster.yaml --from-file=workspace.yaml",
                "kubectl apply -f kubernetes.yaml",
            ]
        if self.systemd:
            return [
                *load_and_create,
                f"sudo cp {home}/wal3-dagster-*.service /etc/systemd/system/",
                f"sudo chown -R wal3 {home}",
                "sudo systemctl daemon-reload",
                f"sudo systemctl enable --now {' '.join(f'wal3-dagster-{name}' for name in SERVICES)}",
            ]
        return [*load_and_create, f"{_program('dg')} dev -w {home}/workspace.yaml -h 127.0.0.1 -p {self.port}"]


def _program(name: str) -> str:
    """Return how a shell finds a program of this environment: by its name, if that is the one on the PATH."""
    program = Path(sys.executable).parent / name
    return name if Path(shutil.which(name) or "") == program else quoted(str(program))


def quoted(value: str) -> str:
    """Return a value as a shell, systemd and docker compose all read it: in double quotes if it needs any.

    InvalidRequestError for a character that they read differently.
    """
    if _PLAIN.fullmatch(value):
        return value
    if _UNQUOTABLE.search(value):
        raise InvalidRequestError(f"expected a value without quotes, $, %, `, \\ and line breaks, found {value!r}")
    return f'"{value}"'


def write(files: Mapping[Path, str], *, force: bool) -> None:
    """Write all files, readable by their owner only if they hold secrets; FileExistsError if one exists."""
    existing = [path for path in files if path.exists()]
    if existing and not force:
        raise FileExistsError(", ".join(map(str, existing)))
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if path.name == ENV_FILE else 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
