"""Logbus's nodes in ZooKeeper: every path and payload, and one module for each kind of node.

See docs/formats/zookeeper.md for the tree.
"""
