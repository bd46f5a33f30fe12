"""Dagster: the workflows that keep logs healthy. Holds no protocol logic of its own."""

import warnings

from dagster import BetaWarning, PreviewWarning

# Used knowingly, with Dagster pinned: one run over many logs, and a check's result for each of them.
warnings.filterwarnings("ignore", message=".*backfill_policy", category=BetaWarning)
warnings.filterwarnings("ignore", message=".*partitions_def on an AssetCheckSpec", category=PreviewWarning)
