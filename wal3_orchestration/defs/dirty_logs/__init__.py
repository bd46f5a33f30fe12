"""Dirty logs: which logs have grown, which of them need maintenance, and what stays marked."""
