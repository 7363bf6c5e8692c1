"""One read over a table and its topic, with a real broker, Spark and database."""
