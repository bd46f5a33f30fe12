"""Spark on logs: a join of two logs, and a streaming aggregate into a third one."""
