"""Schemas of records' values, in the language of Avro. See docs/schemas.md and docs/avro.md."""
