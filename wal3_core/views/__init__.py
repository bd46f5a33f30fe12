"""Ways to use a log; none knows of another."""
