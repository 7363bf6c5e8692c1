"""Rules of who may do what, and proofs of who somebody is, without a connection or a cluster."""
