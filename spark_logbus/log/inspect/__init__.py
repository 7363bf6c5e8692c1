"""Read-only looks at data directories, for ``dump`` and ``verify``."""
