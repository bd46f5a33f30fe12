"""One module per command, named for it; ``program`` puts them together."""
