"""Batch reads and writes of Spark, in turn with Spark's Kafka connector on a Kafka broker."""
