"""Connections to brokers, a pool and a poller of them, and the transports below."""
