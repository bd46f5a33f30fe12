"""Writing one log: appends become fragments, and commits make them part of the log."""
