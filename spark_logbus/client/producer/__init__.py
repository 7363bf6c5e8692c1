"""The producer's path: accumulator, batches, sender, deliveries."""
