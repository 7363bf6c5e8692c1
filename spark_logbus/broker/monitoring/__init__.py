"""The broker's health and metrics, over HTTP.

Reads the broker's parts when somebody asks, and changes none of them; but for the server,
which brings them together, no part knows of this.
"""

from spark_logbus.broker.monitoring.health import Health, Phase, SessionWatch
from spark_logbus.broker.monitoring.metric_table import MetricSources
from spark_logbus.broker.monitoring.server import MonitoringServer

__all__ = ["Health", "MetricSources", "MonitoringServer", "Phase", "SessionWatch"]
