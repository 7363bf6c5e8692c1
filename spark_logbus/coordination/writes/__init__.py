"""Nodes of atomic writes: writers, decisions, promises, contents."""
