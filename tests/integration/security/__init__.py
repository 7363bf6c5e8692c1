"""Tests of who may do what, with real brokers."""
