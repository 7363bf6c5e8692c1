"""Handlers of requests, a module for each kind, and the dispatcher that decodes and calls them.

A handler's class says in ``handlers`` which APIs it answers; ``broker.server`` builds them all.
Adding an API is told in ``protocol.messages``.
"""
