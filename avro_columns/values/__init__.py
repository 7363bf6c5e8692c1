"""Arrow values that fit an Avro schema: types, choices of union branches, coercion, checks."""
