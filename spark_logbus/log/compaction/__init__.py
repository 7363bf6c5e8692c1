"""Compaction of one log: the plan, the pass, the swap of files."""
