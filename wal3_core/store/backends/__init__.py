"""The object stores: a directory, this process's memory, S3, Google Cloud Storage and Azure."""
