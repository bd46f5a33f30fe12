"""The protocol: writing, reading and verifying one log."""
