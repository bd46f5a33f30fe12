"""The dashboard and the alert rules use the metrics that the library records, as Prometheus names them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Sum

from wal3_core.runtime.observer import AppendEnd, CommitEnd, Conflict, Observer, RequestEnd
from wal3_core.runtime.open_telemetry import OpenTelemetryObserver

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "deploy" / "monitoring"
UNITS = {"s": "_seconds", "By": "_bytes"}
# Of the scrape, and of a histogram.
OTHER_LABELS = {"job", "instance", "le"}
NAME = re.compile(r"(?<![\w:])wal3_\w+")
SELECTOR = re.compile(r"(wal3_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def record_all(observer: Observer) -> None:
    """Record each figure with each value of its attributes."""
    for request in RequestEnd:
        for kind in ("read", "get", "create", "replace", "head", "list", "delete"):
            observer.requested("s3://logs", kind, request, 0.1)
    for kind in ("reads", "writes"):
        observer.throttled("s3://logs", kind, 0.1)
        observer.slowed("s3://logs", kind)
    for append in AppendEnd:
        observer.appended("orders", append, num_records=1, num_bytes=10, waits_s=[0.1])
    for commit in CommitEnd:
        observer.committed("orders", commit, 0.1)
    for conflict in Conflict:
        observer.conflicted("orders", conflict)
    observer.retried("orders")
    observer.unrolled("orders")
    observer.held("orders", 10)
    observer.refused("orders")
    observer.followed("orders", 5)
    observer.consumed("orders", "billing", 3)
    observer.collected("orders", 2, 20)


def exported() -> dict[str, dict[str, set[str]]]:
    """Return the values of each label of each metric, by the name that Prometheus gives it."""
    reader = InMemoryMetricReader()
    record_all(OpenTelemetryObserver(MeterProvider([reader]).get_meter("wal3"), log_names=True))
    found = {}
    data: Any = reader.get_metrics_data()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        labels: dict[str, set[str]] = {}
        for point in metric.data.data_points:
            for name, value in point.attributes.items():
                labels.setdefault(name.replace(".", "_"), set()).add(value)
        name = metric.name.replace(".", "_") + UNITS.get(metric.unit, "")
        if isinstance(metric.data, Histogram):
            found |= dict.fromkeys((f"{name}{suffix}" for suffix in ("_bucket", "_sum", "_count")), labels)
        else:
            counts = isinstance(metric.data, Sum) and metric.data.is_monotonic
            found[f"{name}_total" if counts else name] = labels
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    return [each for each in board["panels"] if each["type"] != "row"]


EXPRESSIONS = {
    **{f"rule {each.get('alert') or each['record']}": each["expr"] for each in rules()},
    **{f"panel {each['title']} {target['refId']}": target["expr"] for each in panels() for target in each["targets"]},
}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_expression_names_metrics_labels_and_values_that_are_exported(expression: str) -> None:
    metrics = exported()
    labels = {label for each in metrics.values() for label in each}

    names = set(NAME.findall(expression))
    assert names <= metrics.keys() | labels
    assert names & metrics.keys() or "wal3:" in expression
    for metric, matchers in SELECTOR.findall(expression):
        for label, operator, value in MATCHER.findall(matchers):
            assert label in metrics[metric].keys() | OTHER_LABELS, f"{metric}: {label}"
            if not value.startswith("$"):
                values = set(value.split("|")) if "~" in operator else {value}
                assert values <= metrics[metric][label], f"{metric}: {label}: {value}"
    for grouped in GROUPED.findall(expression):
        assert set(grouped.split(", ")) <= labels | OTHER_LABELS


def test_dashboard_shows_every_metric() -> None:
    used = set(NAME.findall(" ".join(target["expr"] for panel in panels() for target in panel["targets"])))

    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exported()}
    assert {name for name in families if not any(each.startswith(name) for each in used)} == set()


def test_panels_lie_side_by_side_and_have_ids_of_their_own() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    places = [each["gridPos"] for each in board["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"])


def test_each_alert_says_what_happened_and_how_urgent_it_is() -> None:
    alerts = [each for each in rules() if "alert" in each]

    for alert in alerts:
        assert alert["annotations"].keys() == {"summary", "description"}
        assert alert["labels"]["severity"] in {"critical", "warning"}
    assert len({each["alert"] for each in alerts}) == len(alerts)


def test_documentation_lists_the_metrics_that_are_recorded() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    listed = re.findall(r"^\| `(wal3\.[\w.]+)` \| [\w-]+(?: counter)?, (\S+) \|", page, re.MULTILINE)

    reader = InMemoryMetricReader()
    record_all(OpenTelemetryObserver(MeterProvider([reader]).get_meter("wal3"), log_names=False))
    data: Any = reader.get_metrics_data()
    recorded = [(each.name, each.unit) for each in data.resource_metrics[0].scope_metrics[0].metrics]
    assert sorted(listed) == sorted(recorded)


_EXPORT = """
import sys
sys.path.append(sys.argv[1])
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from tests.deployment.test_monitoring import record_all
from wal3_core.runtime.open_telemetry import OpenTelemetryObserver
record_all(OpenTelemetryObserver(MeterProvider([PrometheusMetricReader()]).get_meter("wal3"), log_names=True))
print(generate_latest().decode())
"""


@pytest.mark.slow
@pytest.mark.repeat
def test_names_are_those_of_opentelemetrys_exporter(tmp_path: Path) -> None:
    exporter = f"opentelemetry-exporter-prometheus=={version('opentelemetry-semantic-conventions')}"
    install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*install, "--target", tmp_path, exporter, "prometheus-client>=0.22"], check=True, timeout=600)

    program = [sys.executable, "-c", _EXPORT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    shown = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)

    names = {match[1] for match in re.finditer(r"^(wal3_\w+)(?:\{|\s)", shown.stdout, re.MULTILINE)}
    assert {name for name in names if not name.endswith("_created")} == set(exported())
