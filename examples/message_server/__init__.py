"""A message server over WebSockets, with a feed as its memory."""
