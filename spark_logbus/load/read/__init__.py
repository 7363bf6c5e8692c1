"""Reading of a load's records with Spark: values, columns, number of partitions."""
