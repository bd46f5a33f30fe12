"""Many logs in one store."""
