"""Copies of logs: made from an offset on, updated as the source grows, with its cursors."""
