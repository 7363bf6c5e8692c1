"""When the broker compacts a log, and the child process that does it."""
