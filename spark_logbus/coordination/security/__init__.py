"""Nodes of users, access rules, and the keys of tokens."""
