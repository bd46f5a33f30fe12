"""The same project's mistakes: each line that ends in `# wrong` must be refused."""

import wal3_core
from wal3_core import LogReader, LogWriter, open_store

store = open_store(b"memory:typed")  # wrong
with LogWriter.open_or_create(store, "orders") as writer:
    writer.append("text")  # wrong
    writer.submit(b"body", timeout="5")  # wrong
    print(writer.submit(b"body").result().no_such_field)  # wrong
for record in LogReader.open(store, "orders").records():
    print(record.body.decode())  # wrong
print(wal3_core.NoSuchName)  # wrong
