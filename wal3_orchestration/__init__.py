"""Dagster: the workflows that keep logs healthy. Holds no protocol logic of its own."""

import warnings

from dagster import BetaWarning, PreviewWarning

# Used deliberately, with Dagster pinned: one run over many logs, and a check result for each log.
warnings.filterwarnings("ignore", message=".*backfill_policy", category=BetaWarning)
warnings.filterwarnings("ignore", message=".*partitions_def on an AssetCheckSpec", category=PreviewWarning)
