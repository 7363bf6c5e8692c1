"""Leaves of the log: the file system, names of files, files with a checksum, failed flushes."""
