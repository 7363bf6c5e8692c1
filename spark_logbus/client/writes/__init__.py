"""Atomic writes: committed, or nothing of them is ever seen."""
