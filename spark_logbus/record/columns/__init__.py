"""Payload layout 1: typed values, a column for each field of their schema."""
