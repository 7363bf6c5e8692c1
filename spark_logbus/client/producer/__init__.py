"""The producer's path: topics' queues, accumulator, sender, what follows from an answer."""
