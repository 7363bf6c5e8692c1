"""Shell that all benchmarks share: flags, rounds, results, tables and charts."""
