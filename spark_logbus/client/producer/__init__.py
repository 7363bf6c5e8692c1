"""The producer's path: accumulator, batches, sender, completion."""
