"""Streams of Spark in turn with Kafka's, and with a source that does nothing."""
