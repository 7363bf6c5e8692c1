"""Handlers of requests, a module for each kind, and the dispatcher that decodes and calls them.

A handler's class says in ``handlers`` which APIs it answers; ``broker.server`` builds them all.
``protocol.messages`` lists the steps of adding an API.
"""
