"""Staged appends: processes upload fragments, one of them installs them all at once, under a name only once."""
