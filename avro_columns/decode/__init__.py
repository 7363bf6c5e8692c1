"""Decoding of many Avro datums into Arrow columns at once, with schema resolution."""
