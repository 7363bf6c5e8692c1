"""Connections to brokers: sockets, mapped files, and a pool of them."""
