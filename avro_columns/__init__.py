"""Avro in columns: schemas are parsed and compared, datums decoded into Arrow and encoded."""
