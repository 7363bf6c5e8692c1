"""Processes of this machine: Java, an embedded ZooKeeper, and a whole cluster."""
