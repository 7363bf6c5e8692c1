"""Clusters that a mirror copies from: logbus and Kafka."""
