"""The broker's health and metrics, over HTTP.

Reads the broker's parts when somebody asks, and changes none of them; no part but the broker, which
brings them together, knows of this.
"""

from spark_logbus.broker.monitoring.health import Phase
from spark_logbus.broker.monitoring.monitoring import Monitoring

__all__ = ["Monitoring", "Phase"]
