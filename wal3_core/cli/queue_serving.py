"""``wal3 queue serve``: the server, with its packages."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.server_options import QueueServerOptions
from wal3_core.queue_server.tokens import TOKENS_VARIABLE, Tokens, read_tokens, split_tokens
from wal3_core.runtime.extras import missing

try:
    from wal3_core.queue_server.service import QueueService
    from wal3_core.queue_server.serving import check_exposure, listening, serve, url_of, within_open_files
except ModuleNotFoundError as error:
    if error.name not in {"fastapi", "pydantic", "starlette", "uvicorn"}:
        raise
    message = f"queue server: {missing(error.name, 'queue')}"
    raise InvalidRequestError(message) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from wal3_core.storage.object_store import ObjectStore


def serve_queues(  # noqa: PLR0913 - its options
    store: ObjectStore,
    prefix: str,
    *,
    address: tuple[str, int],
    tokens_file: Path | None,
    insecure: bool,
    limits: Mapping[str, Any],
    ready: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM; ``ready`` gets the URL once the server listens. Warnings go to stderr."""
    # A server has nothing else to tell its operator by.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    host, port = address
    tokens = Tokens(
        read_tokens(tokens_file) if tokens_file is not None else split_tokens(os.environ.get(TOKENS_VARIABLE, ""))
    )
    check_exposure(host, tokens, insecure=insecure)
    service = QueueService(store, prefix, within_open_files(QueueServerOptions(**limits)))
    with listening(host, port) as listener:
        serve(service, tokens, listener, partial(ready, url_of(listener)))
