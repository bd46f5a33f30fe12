"""Delay queues over HTTP: a server that is the broker of all queues below a prefix, and a client of it."""
