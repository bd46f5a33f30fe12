"""The tree of snapshots below a manifest: how it grows, is packed again, and changes by a pass. Pure."""
