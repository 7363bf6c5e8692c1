"""Verbs on records: produce, consume, bench."""
