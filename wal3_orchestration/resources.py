"""The store and Spark, configured by the environment: the same code on a laptop and on a cluster.

WAL3_STORE         URL of the store; the code location does not load without it
WAL3_SPARK_MASTER  where Spark runs: local[2] by default, spark://…, yarn, k8s://…
WAL3_SPARK_CONF    further Spark settings as a JSON object: {"spark.executor.memory": "4g"}
WAL3_GC_INTERVAL_S seconds between pruning a log and deleting what was pruned: a day by default
WAL3_DIRTY_AGE_S   seconds from a log's oldest mark in a dirty log to its maintenance: an hour by default
"""

import json
import math
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import boto3
from dagster import (
    ConfigurableResource,
    EnvVar,
    Field,
    InitResourceContext,
    Permissive,
    ResourceDefinition,
    ResourceDependency,
)
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource
from pydantic import model_validator
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from wal3_core import InvalidRequestError, open_store
from wal3_core.fleet.dirty.rollup_plan import RollUpOptions
from wal3_core.options import CollectorOptions
from wal3_core.spark.session import session_conf, use_this_python
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.store_urls import options_of_url, split_store_url

STORE_VARIABLE = "WAL3_STORE"
MASTER_VARIABLE = "WAL3_SPARK_MASTER"
CONF_VARIABLE = "WAL3_SPARK_CONF"
INTERVAL_VARIABLE = "WAL3_GC_INTERVAL_S"
AGE_VARIABLE = "WAL3_DIRTY_AGE_S"
JAVA_MIN = 17
_INSTALL = (
    f"Spark needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless (Debian, Ubuntu),"
    " dnf install java-17-openjdk-headless (Fedora), brew install openjdk@17 (macOS), or set JAVA_HOME to where it is"
)
# Servers that append once in this age mark their dirty log again before it is collected by itself.
_QUIET_AGES = 3
_WHEN = (
    "Less work is done without Spark: the fields `spark_work_s_min`, `spark_bytes_min` and `spark_objects_min` of the"
    " resource `collection` say from when on it is used"
)


def _check_numbers(resource: object) -> object:
    """Refuse NaN: no number exceeds it, so no check would warn. All are limits, ages or counts: none is below 0."""
    for name, value in vars(resource).items():
        if isinstance(value, int | float) and (math.isnan(value) or value < 0):
            raise ValueError(f"{name}: expected a number that is not negative, found {value}")
    return resource


class StoreResource(ConfigurableResource["StoreResource"]):
    """The object store that holds the logs: ``store`` is its URL; when it is empty, WAL3_STORE is used.

    Discovery treats it as a fault of the store when all known logs are gone at once, or more than
    ``logs_lost_max`` of them that are also more than ``logs_lost_fraction_max`` of all. Spark's processes
    open the store by its URL and their own environment: credentials set only on the S3 resource do not
    reach them.
    """

    store: str = ""
    logs_lost_max: int = 10
    logs_lost_fraction_max: float = 0.5
    s3: ResourceDependency[S3Resource]

    _numbers = model_validator(mode="after")(_check_numbers)

    @classmethod
    def from_environment(cls) -> Self:
        """Describe the store that the environment names, with AWS' usual variables and profiles for S3."""
        return cls(store=os.environ.get(STORE_VARIABLE, ""), s3=S3Resource())

    @property
    def url(self) -> str:
        """The store's URL for any process: includes an endpoint set on the S3 resource."""
        url = self.require_url()
        parts = split_store_url(url)
        endpoint = self.s3.endpoint_url if parts.scheme == "s3" else None
        if endpoint is None or "endpoint" in options_of_url(url):
            return url
        query = f"{parts.query}&" if parts.query else ""
        return parts._replace(query=f"{query}endpoint={quote(endpoint, safe='')}").geturl()

    def require_url(self) -> str:
        """Return the configured URL; InvalidRequestError when neither ``store`` nor WAL3_STORE names one."""
        # Outside of a run, Dagster does not replace an EnvVar by its value.
        given = self.store.get_value() if isinstance(self.store, EnvVar) else self.store
        url = given or os.environ.get(STORE_VARIABLE)
        if not url:
            message = f"{STORE_VARIABLE}: expected the store's URL, found none: set it for the code location"
            raise InvalidRequestError(message)
        return url

    def open(self) -> ObjectStore:
        """Open the store; an S3 one with the session that the S3 resource describes."""
        url, s3 = self.url, self.s3
        if split_store_url(url).scheme != "s3":
            return open_store(url, session=None)
        session = boto3.session.Session(
            profile_name=s3.profile_name,
            region_name=s3.region_name,
            aws_access_key_id=s3.aws_access_key_id,
            aws_secret_access_key=s3.aws_secret_access_key,
            aws_session_token=s3.aws_session_token,
        )
        return open_store(url, session=session)


def without_password(url: str) -> str:
    """Return a store's URL as it is shown: without a user and password, in its address and its endpoint."""
    parts = urlsplit(url)
    options = [(name, without_password(value) if "://" in value else value) for name, value in parse_qsl(parts.query)]
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query=urlencode(options, safe=":/")).geturl()


def spark_resource(environment: Mapping[str, str] = os.environ) -> LazyPySparkResource:
    """Describe the Spark session; it starts when a step first asks for it."""
    master = environment.get(MASTER_VARIABLE) or "local[2]"
    further = json.loads(environment.get(CONF_VARIABLE) or "{}")
    return LazyPySparkResource(spark_config={**session_conf(master), **further})


def spark_session(spark: LazyPySparkResource) -> SparkSession:
    """Start the session, or return the running one; InvalidRequestError when this machine has no Java for it."""
    use_this_python(spark.spark_config)
    try:
        session: SparkSession = spark.spark_session
    except PySparkException as error:
        problem = java_problem() if error.getCondition() == "JAVA_GATEWAY_EXITED" else None
        if problem is None:
            raise
        raise InvalidRequestError(f"Spark did not start: {problem}. {_WHEN}") from error
    return session


def java_problem() -> str | None:
    """Say what is wrong with the machine's Java; None when it is fine."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        printed = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 - the user's Java, as Spark itself will run it
    except OSError:
        return f"{program}: expected Java, found none. {_INSTALL}"
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    if found is None or int(found[1]) < JAVA_MIN:
        version = printed.splitlines()[0] if printed else "nothing"
        return f"{program}: expected Java {JAVA_MIN} or newer, found {version}. {_INSTALL}"
    return None


class CollectionResource(ConfigurableResource["CollectionResource"]):
    """How logs are collected and compacted by key, how delay queues are looked at, and when to warn.

    ``interval_s`` is the time between pruning and deleting: WAL3_GC_INTERVAL_S when it is 0, a day when
    that is not set either. A plan that takes more than ``fraction_max`` of a log's bytes is refused, unless the log has
    a consumer's cursor.

    Checks warn when a plan takes more than ``fraction_alarm`` of a log; when a garbage document is older
    than ``intervals_max`` intervals or an announced collection older than ``announced_s_max`` seconds; when
    garbage that a plan found ``planned_s_max`` seconds ago is not pruned; when a cursor that lags at least
    ``lag_min`` records does not move for ``cursor_idle_s_max`` seconds while the log grows; and when at least
    ``orphans_max`` orphans are found, or at least ``orphans_min`` and more than the last time twice in a row.

    Spark takes seconds to start, so that less work is done without it: verification of logs of less than
    ``spark_bytes_min`` bytes together, deletion of fewer than ``spark_objects_min`` objects of a log, key compaction of
    a log of fewer than ``spark_bytes_min`` bytes; and plans, listings and verification as long as the logs that are
    left would take less than ``spark_work_s_min`` seconds, by what those before them took.

    A sweep compacts up to ``compactions_max`` of the logs that are due by key, each at ``compaction_bytes_per_s_max``
    bytes a second (0 for no limit). Its passes over logs of up to ``compaction_verified_bytes_max`` bytes are verified.
    A check warns when a log has dirty records ``compaction_late_s_max`` seconds longer than its policy allows.

    The sensor reads each delay queue every ``queue_period_s`` seconds. A run reads one that has more than
    ``queue_records_max`` records after its checkpoint, or ten times as many in all, and does so once an hour. Checks
    warn when an item has been due for more than ``queue_due_s_max`` seconds, when a queue has more than
    ``queue_dead_max`` dead letters, and when more than ``queue_pending_max`` items wait in it.
    """

    interval_s: float = 0.0
    fraction_max: float = CollectorOptions().fraction_max
    fraction_alarm: float = 0.75
    intervals_max: float = 2.0
    announced_s_max: float = 60 * 60
    planned_s_max: float = 2 * 24 * 60 * 60
    cursor_idle_s_max: float = 3 * 24 * 60 * 60
    lag_min: int = 1
    orphans_max: int = 5_000
    orphans_min: int = 100
    spark_work_s_min: float = 5 * 60
    spark_objects_min: int = 5_000
    spark_bytes_min: int = 256 * 2**20
    compactions_max: int = 500
    compaction_bytes_per_s_max: int = 0
    compaction_verified_bytes_max: int = 2**30
    compaction_late_s_max: float = 60 * 60
    queue_period_s: float = 15 * 60
    queue_records_max: int = 250_000
    queue_due_s_max: float = 60 * 60
    queue_dead_max: int = 0
    queue_pending_max: int = 1_000_000

    _numbers = model_validator(mode="after")(_check_numbers)

    def options(self) -> CollectorOptions:
        """Return the library's options."""
        return CollectorOptions(interval_s=self.waiting_s, fraction_max=self.fraction_max)

    @property
    def waiting_s(self) -> float:
        """The seconds between pruning and deleting."""
        return self.interval_s or float(os.environ.get(INTERVAL_VARIABLE) or CollectorOptions().interval_s)


# What the launchpad shows, of all fields of the resources.
KNOBS = ("interval_s", "fraction_max", "spark_work_s_min")


def with_few_knobs(resource: ConfigurableResource[Any]) -> ResourceDefinition:
    """Return a resource of which a run's launchpad shows only the fields that people turn; it takes all of them."""
    shown = {name: Field(float, default_value=getattr(resource, name)) for name in KNOBS if hasattr(resource, name)}

    def build(context: InitResourceContext) -> Iterator[object]:
        given = context.resource_config
        if unknown := sorted(set(given) - set(type(resource).model_fields)):
            raise InvalidRequestError(f"{type(resource).__name__}: expected its fields, found {', '.join(unknown)}")
        changed = type(resource)(**{**dict(resource), **given})
        with changed.process_config_and_initialize_cm() as made:
            yield made

    schema = Permissive(shown)  # type: ignore[no-untyped-call]  # its constructor has no types
    described = " ".join((type(resource).__doc__ or "").partition("\n\n")[0].split())
    return ResourceDefinition(contextmanager(build), config_schema=schema, description=described)


class RollUpResource(ConfigurableResource["RollUpResource"]):
    """When a log that is marked in a dirty log is maintained, and when to warn.

    It is due when its oldest mark is more than ``age_s_max`` seconds old (WAL3_DIRTY_AGE_S, or an hour, unless
    given), when ``records_max`` records or ``bytes_max`` bytes of it are unprocessed, or when its mark was kept
    ``reinsertions_max`` times. What was processed is what the cursor ``cursor`` says, in each log; without one, a log
    is dirty until its maintenance was asked for.

    The sensor reads the dirty logs every ``period_s`` seconds. It reads a dirty log in its tick if at most
    ``tick_markers_max`` markers wait there; more are read by a run, up to ``run_markers_max`` of each dirty log, and
    on Spark from ``spark_markers_min`` markers of all dirty logs on. A dirty log is collected together with the logs
    that it marks, and once more when nothing was appended to it for ``quiet_s`` seconds (three times the age from which
    on a log is due, unless given).

    Checks warn when more than ``waiting_max`` markers wait in a dirty log, and when a mark has waited more than
    ``late_s_max`` seconds longer than ``age_s_max``, and when a marked log has more than ``unprocessed_max`` records
    that its consumers have not processed (0: only the limits of the logs' own policies count).
    """

    cursor: str = ""
    age_s_max: float | None = None
    records_max: int = RollUpOptions().records_max
    bytes_max: int = RollUpOptions().bytes_max
    reinsertions_max: int = RollUpOptions().reinsertions_max
    period_s: float = 900.0
    quiet_s: float | None = None
    tick_markers_max: int = 5_000
    run_markers_max: int = RollUpOptions().markers_max
    spark_markers_min: int = 50_000
    waiting_max: int = 1_000_000
    late_s_max: float = 60 * 60
    unprocessed_max: int = 0

    _numbers = model_validator(mode="after")(_check_numbers)

    def options(self, markers_max: int) -> RollUpOptions:
        """Return the library's options for a roll-up that reads at most ``markers_max`` markers."""
        return RollUpOptions(
            cursor=self.cursor or None,
            age_s_max=self.due_s,
            records_max=self.records_max,
            bytes_max=self.bytes_max,
            reinsertions_max=self.reinsertions_max,
            markers_max=markers_max,
        )

    @property
    def due_s(self) -> float:
        """The age of the oldest mark from which on a log is due, in seconds."""
        if self.age_s_max is not None:
            return self.age_s_max
        return float(os.environ.get(AGE_VARIABLE) or RollUpOptions().age_s_max)

    @property
    def quiet_due_s(self) -> float:
        """For how long nothing was appended to a dirty log that is collected by itself, in seconds."""
        return _QUIET_AGES * self.due_s if self.quiet_s is None else self.quiet_s
