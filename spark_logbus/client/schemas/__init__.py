"""Schemas of topics' values, for clients: lookups for producers and readers, administration."""
