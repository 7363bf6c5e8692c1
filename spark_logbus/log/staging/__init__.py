"""Record batches that are on disk, and that nobody can read until their write is decided."""
