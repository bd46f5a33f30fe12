"""Dagster: the workflows that keep logs healthy. Holds no protocol logic of its own."""

import warnings

from dagster import BetaWarning

# Used deliberately, with Dagster pinned: one run over many logs.
warnings.filterwarnings("ignore", message=".*backfill_policy", category=BetaWarning)
# Dagster itself passes it on when it binds a sensor to its jobs.
warnings.filterwarnings("ignore", message="Parameter `owners` of initializer `SensorDefinition", category=BetaWarning)
