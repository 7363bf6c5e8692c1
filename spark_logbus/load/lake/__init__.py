"""Tables of a lake, in the formats Delta and Iceberg, as targets of loads."""
