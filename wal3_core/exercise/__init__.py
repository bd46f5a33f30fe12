"""The exercise of a store: a varied load over many logs, and a check of every record it wrote."""
