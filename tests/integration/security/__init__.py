"""Who may do what, with real brokers."""
