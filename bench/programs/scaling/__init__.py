"""Growth of costs with partitions, readers, the size of a log and the number of brokers."""
