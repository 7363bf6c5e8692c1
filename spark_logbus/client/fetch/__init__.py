"""Fetched record batches: of a range, of a time, as records."""
