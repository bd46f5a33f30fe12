"""Dagster: the workflows that keep logs healthy. Holds no protocol logic of its own."""
