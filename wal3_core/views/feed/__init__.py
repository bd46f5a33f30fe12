"""A feed: the memory of a message server, as a log whose records are messages under topics.

A record's key is the message's topic, its body the message as msgpack. All else of the log stays as it is: its
fragments, cursors, policy and collection. Source: docs/feeds.md.
"""
