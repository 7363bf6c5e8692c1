"""What an operator sees of a broker: whether it serves, and its metrics, over HTTP.

Reads the broker's parts when somebody asks, and changes none of them; but for the server,
which brings them together, no part knows of this.
"""

from spark_logbus.broker.monitoring.health import Health, Phase, SessionWatch
from spark_logbus.broker.monitoring.http import HttpServer
from spark_logbus.broker.monitoring.metric_table import MetricSources
from spark_logbus.broker.monitoring.metrics import Pages

__all__ = ["Health", "HttpServer", "MetricSources", "Pages", "Phase", "SessionWatch"]
