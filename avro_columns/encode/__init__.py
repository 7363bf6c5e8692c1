"""Encoding of Arrow columns into Avro datums."""
