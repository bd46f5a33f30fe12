"""What a log's records mean. The views do not import each other."""
