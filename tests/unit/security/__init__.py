"""Rules and proofs, without a connection."""
