"""Tables of a relational database as the target of loads: data and offsets in one transaction."""
