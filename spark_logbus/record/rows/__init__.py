"""Payload layout 0: records as rows of key, value, timestamp and headers in Arrow IPC."""
