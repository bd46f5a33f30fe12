"""Dirty logs: markers of the logs that grew, their roll-ups, and how far the consumers of marked logs are behind."""
