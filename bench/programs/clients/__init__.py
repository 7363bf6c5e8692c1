"""Producers and consumers in turn with librdkafka's, and with Kafka's own in Java."""
