"""The command ``logbus``: one module per verb."""

from spark_logbus.cli.app import main

__all__ = ["main"]
