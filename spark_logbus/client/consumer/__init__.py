"""The consumer: its fetcher and its group's offsets."""
