"""Connections to brokers, which clients and other brokers open: handshakes, a pool and a poller of
them, and the transports below."""
