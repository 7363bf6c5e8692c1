"""Who is at the other end of a connection, and what that one may do."""
