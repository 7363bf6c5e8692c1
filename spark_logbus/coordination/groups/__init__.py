"""Nodes of consumer groups: members, owners, offsets, rewinds."""
