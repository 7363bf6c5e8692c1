"""A listener for ZooKeeper's own protocol that knows who connects, and lets each do what it may.

Clients write groups, rewinds, owners, locks and schemas to ZooKeeper themselves, by transactions
whose conditions are what makes them right. A gateway takes the same requests, checks the path of
every operation by the access rules, and hands them on, over a connection to ZooKeeper for each
client's session. So nothing of that changes, and clients need no way to ZooKeeper.
"""
