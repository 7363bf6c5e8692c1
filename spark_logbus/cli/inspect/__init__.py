"""Verbs on the files of a stopped broker: dump, verify, accept-clock."""
