"""Idempotent producers: their state in a log, and snapshots of it."""
