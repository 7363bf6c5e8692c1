"""logbus beside the brokers that a user would take instead: the experiments of the Kafka paper.

Section 5 of "Kafka: a Distributed Messaging System for Log Processing" (NetDB 2011) sends 10
million records of 200 bytes with one producer, one by one and 50 at a time, and reads them with one
consumer. ``scripts/bench peers`` does so with logbus, and with its peers.

A measurement is of one contender: it sends records to a fresh topic, looks at the bytes on disk,
and reads all of them again. What was read must be as many as were sent, with the same checksum.
"""
