"""The object stores: a directory, this process's memory, S3 and its kin."""
