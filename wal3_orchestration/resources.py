"""The store and Spark, configured by the environment: the same code on a laptop and on a cluster.

WAL3_STORE         URL of the store; without it a local one in .demo/store below the working directory
WAL3_SPARK_MASTER  where Spark runs: local[2] unless told, spark://…, yarn, k8s://…
WAL3_SPARK_CONF    further Spark settings as a JSON object: {"spark.executor.memory": "4g"}
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import boto3
from dagster import ConfigurableResource, ResourceDependency
from dagster_aws.s3 import S3Resource
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from wal3_core import open_store
from wal3_core.spark.session import session_conf, use_this_python
from wal3_core.storage.object_store import ObjectStore

STORE_VARIABLE = "WAL3_STORE"
MASTER_VARIABLE = "WAL3_SPARK_MASTER"
CONF_VARIABLE = "WAL3_SPARK_CONF"


class StoreResource(ConfigurableResource["StoreResource"]):
    """The object store the logs live in: ``store`` is its URL; what WAL3_STORE says when it is empty.

    Spark's processes open it by its URL and their own environment: credentials set on the S3
    resource alone do not reach them.
    """

    store: str = ""
    s3: ResourceDependency[S3Resource]

    @classmethod
    def from_environment(cls) -> Self:
        """Describe the store that the environment names, with AWS' usual variables and profiles for an S3 one."""
        return cls(s3=S3Resource())

    @property
    def url(self) -> str:
        """The store's URL, as any process can open it: an endpoint set on the S3 resource is in it."""
        url = self.store or os.environ.get(STORE_VARIABLE) or (Path.cwd() / ".demo" / "store").as_uri()
        parts = urlsplit(url)
        endpoint = self.s3.endpoint_url if parts.scheme == "s3" else None
        if endpoint is None or "endpoint=" in parts.query:
            return url
        query = f"{parts.query}&" if parts.query else ""
        return parts._replace(query=f"{query}endpoint={quote(endpoint, safe='')}").geturl()

    def open(self) -> ObjectStore:
        """Open the store; an S3 one with the session that the S3 resource describes."""
        url = self.url
        return open_store(url, session=self._session() if urlsplit(url).scheme == "s3" else None)

    def _session(self) -> boto3.session.Session:
        s3 = self.s3
        return boto3.session.Session(
            profile_name=s3.profile_name,
            region_name=s3.region_name,
            aws_access_key_id=s3.aws_access_key_id,
            aws_secret_access_key=s3.aws_secret_access_key,
            aws_session_token=s3.aws_session_token,
        )


def spark_resource(environment: Mapping[str, str] = os.environ) -> LazyPySparkResource:
    """Describe the Spark session; it starts when a step first asks for it."""
    master = environment.get(MASTER_VARIABLE) or "local[2]"
    further = json.loads(environment.get(CONF_VARIABLE) or "{}")
    return LazyPySparkResource(spark_config={**session_conf(master), **further})


def spark_session(spark: LazyPySparkResource) -> SparkSession:
    """Start the session, or return the one that runs."""
    use_this_python()
    session: SparkSession = spark.spark_session
    return session
