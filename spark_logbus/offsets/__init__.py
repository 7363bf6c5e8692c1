"""Positions to read from, ranges and how they are split, data loss, and rewinds of groups.

Planning is pure; ``snapshot`` asks the brokers and ``rewind.apply`` writes. No pyspark in here.
"""
