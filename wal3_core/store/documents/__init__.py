"""The stores of a log's documents: created once, or swapped by CAS."""
