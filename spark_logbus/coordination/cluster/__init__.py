"""Nodes of the cluster: brokers, topics, partition states, leases."""
