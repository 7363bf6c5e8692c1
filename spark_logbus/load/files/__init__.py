"""Warehouses of files: staged, committed and found in a directory of Hadoop's file systems."""
