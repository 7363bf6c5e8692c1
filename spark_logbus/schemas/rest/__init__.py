"""The schema registry over HTTP, as Confluent's API has it."""
