"""Which permission S3 did not find when it denied a request."""

from __future__ import annotations

import re

_FORBIDDEN = re.compile("status code: 403 ")
_METHOD = re.compile("Error performing ([A-Z]+) ")
_LISTING = "Error performing list request"
_ACTIONS = {"PUT": "s3:PutObject", "GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}


def permission_needed(url: str, key: str, error: Exception) -> str:
    """Say which action on ``key`` these credentials need, by obstore's text; empty if that is not why it failed."""
    text = str(error)
    method = _METHOD.search(text)
    if not url.startswith("s3:") or not _FORBIDDEN.search(text) or method is None:
        return ""
    action = "s3:ListBucket" if _LISTING in text else _ACTIONS.get(method[1], method[1])
    return f": these credentials need {action} for {key}"
