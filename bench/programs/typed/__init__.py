"""Topics with a schema as columns in Spark, beside ready-made Arrow batches, JSON and Avro."""
