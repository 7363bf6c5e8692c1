"""Topics and offsets, for people and tools."""
