"""Object stores: conditional PUT and its three outcomes, and the documents swapped by it."""
