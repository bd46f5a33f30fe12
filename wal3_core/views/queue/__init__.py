"""A durable delay queue on a log."""
