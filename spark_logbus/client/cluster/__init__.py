"""A client's knowledge of a cluster: its brokers, topics and leaders, and calls to them."""
