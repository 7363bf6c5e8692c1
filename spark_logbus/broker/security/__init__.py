"""Logins of connections at a broker, and decisions about what each of them may do."""
