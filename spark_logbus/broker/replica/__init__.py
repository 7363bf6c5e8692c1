"""Partitions that this broker leads."""
