"""The code location: what Dagster loads."""

from dagster import Definitions, in_process_executor

from wal3_orchestration.defs.discovery import discovery
from wal3_orchestration.defs.manifests import manifest, manifest_job
from wal3_orchestration.defs.verification import nightly_verification, verification, verification_job
from wal3_orchestration.resources import StoreResource, spark_resource

defs = Definitions(
    assets=[manifest, verification],
    jobs=[manifest_job, verification_job],
    sensors=[discovery],
    schedules=[nightly_verification],
    resources={"store": StoreResource.from_environment(), "spark": spark_resource()},
    # One process and one Spark session a run; nothing is handed between steps but their order.
    executor=in_process_executor,
)
