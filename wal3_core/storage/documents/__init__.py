"""The documents of a log on a store: created once, or swapped by CAS."""
