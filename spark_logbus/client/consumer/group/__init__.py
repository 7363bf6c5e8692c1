"""Membership of a consumer in its group: rebalances, claims, committed offsets."""
