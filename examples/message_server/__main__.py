"""Run the message server."""

import sys

from examples.message_server.server import main

if __name__ == "__main__":
    sys.exit(main())
