"""A cluster under load, with faults: servers that fail, clients that must not notice, and what they
know of the logs. Tests of whatever happens to partitions meanwhile stand on it.

No fault lasts longer than clients wait (``records.CLIENT``), so not one of them may raise an error.
"""
