"""As much of a Kubernetes API as Spark needs for executors, and Dagster for runs: pods are processes of this machine.

It stands for the API server, the scheduler and the kubelets. An executor's container is what the entrypoint of Spark's
image runs for the argument ``executor``, with the environment that the pod asks for, on the Python of a worker; a job's
is the command that it names. There is no authentication; images, networks, limits, secrets and volumes mean nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.cluster.spark_cluster import OPENED, SPARK_HOME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Object = dict[str, Any]

NAMESPACE = "default"
BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
POLL_S = 0.1
# The kinds that have containers.
_RUN = ("pods", "jobs")


@dataclass
class Pods:
    """The objects of a namespace, and the processes that run its pods."""

    folder: Path
    # What a node gives to each of its pods.
    environment: Mapping[str, str]
    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    # Every pod that was ever asked for.
    asked: list[Object] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0

    def create(self, kind: str, given: Object) -> Object:
        """Create an object; start a pod."""
        with self.lock:
            name = given["metadata"]["name"]
            self._touch(given)
            given["metadata"] |= {"uid": f"uid-{self.version}", "namespace": NAMESPACE}
            given["metadata"]["creationTimestamp"] = "2030-01-01T00:00:00Z"
            self.objects.setdefault(kind, {})[name] = given
            if kind in _RUN:
                self.asked.append(given)
                self.processes[name] = self._start(name, given if kind == "pods" else given["spec"]["template"])
            return given

    def listed(self, kind: str, labels: Mapping[str, str]) -> list[Object]:
        """Return the objects that have all the labels, as they are now."""
        with self.lock:
            found = [each for each in self.objects.get(kind, {}).values() if _has(each, labels)]
            for each in found if kind == "pods" else ():
                self._look(each)
            return [json.loads(json.dumps(each)) for each in found]

    def delete(self, kind: str, name: str) -> Object | None:
        """Delete an object; end a pod."""
        with self.lock:
            process = self.processes.pop(name, None) if kind in _RUN else None
            if process is not None:
                process.kill()
                process.wait(60)
            return self.objects.get(kind, {}).pop(name, None)

    def kill(self) -> None:
        """Kill the containers that run now."""
        with self.lock:
            for process in self.processes.values():
                process.kill()

    def end(self) -> None:
        """End all pods."""
        for kind in _RUN:
            for name in list(self.objects.get(kind, {})):
                self.delete(kind, name)

    def _touch(self, one: Object) -> None:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)

    def _start(self, name: str, pod: Object) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        given = {"status.podIP": "127.0.0.1", "metadata.name": name}
        named = {
            each["name"]: each["value"] if "value" in each else given[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container.get("env") or ()
        }
        command = [*(container.get("command") or ()), *(container.get("args") or ())]
        environment = {each: os.environ[each] for each in ("PATH", "HOME", "JAVA_HOME") if each in os.environ}
        (work := self.folder / name).mkdir(parents=True)
        with (work / "log").open("wb") as log:
            return subprocess.Popen(
                _executor(named) if command == ["executor"] else command,
                env={**environment, **self.environment, **named, "SPARK_HOME": str(SPARK_HOME)},
                cwd=work,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _look(self, pod: Object) -> None:
        """Put into a pod what its process does."""
        code = self.processes[pod["metadata"]["name"]].poll()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        if pod.get("status", {}).get("phase") == phase:
            return
        ended = {"exitCode": 128 - code if code is not None and code < 0 else code, "reason": "Error"}
        state = {"running": {"startedAt": "2030-01-01T00:00:00Z"}} if code is None else {"terminated": ended}
        container = {"name": pod["spec"]["containers"][0]["name"], "state": state, "ready": code is None}
        statuses = [{**container, "restartCount": 0, "image": "", "imageID": ""}]
        pod["status"] = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": statuses}
        self._touch(pod)


def _executor(named: Mapping[str, str]) -> list[str]:
    """Return what the entrypoint of Spark's image runs for an executor with such an environment."""
    options = [value for name, value in named.items() if name.startswith("SPARK_JAVA_OPT_")]
    memory = named["SPARK_EXECUTOR_MEMORY"]
    java = ["java", *OPENED, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{SPARK_HOME}/jars/*", BACKEND]
    arguments = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [*java, *(part for name, variable in arguments.items() for part in (f"--{name}", named[variable]))]


def _has(one: Object, labels: Mapping[str, str]) -> bool:
    found = one["metadata"].get("labels", {})
    return all(found.get(name) == value for name, value in labels.items())


@contextmanager
def kubernetes(folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, Pods]]:
    """Serve the API; give its URL for ``--master``, and the pods. At the end, all are gone."""
    pods = Pods(folder, environment)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (_Handler,), {"pods": pods}))
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield f"k8s://http://127.0.0.1:{server.server_address[1]}", pods
    finally:
        server.shutdown()
        serving.join(60)
        server.server_close()
        pods.end()


class _Handler(BaseHTTPRequestHandler):
    pods: Pods
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, name, query = self._asked()
        labels = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part)
        if self.headers.get("Upgrade", "").lower() == "websocket":
            # Then the client watches by a plain request.
            self._answer(503, _status(503))
        elif query.get("watch") == "true":
            self._watch(kind, labels)
        elif name:
            found = [each for each in self.pods.listed(kind, {}) if each["metadata"]["name"] == name]
            self._answer(*((200, found[0]) if found else (404, _status(404))))
        else:
            items = self.pods.listed(kind, labels)
            version = {"resourceVersion": str(self.pods.version)}
            self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": version, "items": items})

    def do_POST(self) -> None:
        given = json.loads(self._body())
        self._answer(201, self.pods.create(self._asked()[0], given))

    def do_PATCH(self) -> None:
        kind, name, _ = self._asked()
        self._body()
        found = [each for each in self.pods.listed(kind, {}) if each["metadata"]["name"] == name]
        self._answer(*((200, found[0]) if found else (404, _status(404))))

    def do_DELETE(self) -> None:
        kind, name, query = self._asked()
        self._body()
        labels = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part)
        names = [name] if name else [each["metadata"]["name"] for each in self.pods.listed(kind, labels)]
        gone = [self.pods.delete(kind, each) for each in names]
        self._answer(*((200, _status(200)) if any(gone) or not name else (404, _status(404))))

    def _asked(self) -> tuple[str, str, dict[str, str]]:
        """Return the kind, the name, and the query of a path /api/v1/namespaces/NAMESPACE/KIND/NAME."""
        parts = urlsplit(self.path)
        kind, _, name = parts.path.partition(f"/namespaces/{NAMESPACE}/")[2].partition("/")
        return kind, name, {label: values[0] for label, values in parse_qs(parts.query).items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, document: Object) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, kind: str, labels: Mapping[str, str]) -> None:
        """Send what changes, until the client goes away."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.close_connection = True
        seen: dict[str, Object] = {}
        ended = threading.Event()
        while not ended.wait(POLL_S):
            now = {each["metadata"]["name"]: each for each in self.pods.listed(kind, labels)}
            events = [("MODIFIED" if name in seen else "ADDED", name) for name in now if seen.get(name) != now[name]]
            events += [("DELETED", name) for name in seen if name not in now]
            try:
                for event, name in events:
                    found = now[name] if name in now else seen[name]
                    self.wfile.write(json.dumps({"type": event, "object": found}).encode() + b"\n")
                self.wfile.flush()
            except OSError:
                ended.set()
            seen = now

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Stay silent."""


def _status(code: int) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Success" if code < 400 else "Failure", "code": code}
