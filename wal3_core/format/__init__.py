"""The log's values and their transitions: no I/O, no clock, no threads, no randomness."""
