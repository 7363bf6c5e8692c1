"""What a client knows of a cluster: its brokers, topics and leaders, and calls to them."""
