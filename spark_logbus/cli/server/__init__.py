"""Verbs that run servers: a broker, a registry, all at once."""
