"""Collecting one log's garbage: plan, announce, prune, delete."""
