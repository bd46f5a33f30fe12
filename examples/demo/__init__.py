"""The demo: real input in a local store, maintained by a real Dagster instance."""
