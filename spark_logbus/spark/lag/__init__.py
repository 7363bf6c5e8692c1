"""The lag of streaming queries, for logs and Prometheus; reads Spark's progress only."""
