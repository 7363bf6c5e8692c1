"""What ZooKeeper keeps of users, access rules, and the keys of tokens."""
