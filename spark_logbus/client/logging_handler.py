"""A ``logging.Handler`` that publishes log records to a topic."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.producer.producer import Producer
from spark_logbus.errors import (
    BufferExhaustedError,
    DeliveryFailedError,
    LogbusError,
    RequestTimeoutError,
)
from spark_logbus.model import Acks
from spark_logbus.zookeeper import default_connect

# What these log while a record is published would be published in turn, and so on.
_OWN: Final = ("spark_logbus", "kazoo")
_FLUSH_S: Final = 5.0


class JsonFormatter(logging.Formatter):
    """One JSON object for each log record: time (ISO 8601, UTC), level, logger, message, and where
    there is one, exception. Fields that were given as ``extra`` are added."""

    _USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields: dict[str, Any] = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        extra = {name: value for name, value in vars(record).items() if name not in self._USUAL}
        return json.dumps(extra | fields, default=str, ensure_ascii=False)


class LogbusHandler(logging.Handler):
    """Publishes log records to ``topic``, as JSON unless a formatter is set.

    It never holds up who logs: when the brokers cannot keep up or are away, and the buffer is full,
    records are dropped and counted in ``dropped``. ``key`` is that of all records; None spreads
    them over the partitions. What logbus and kazoo log is not published.

    Raises UnknownTopicError, and CoordinationError or BrokerUnavailableError where there is no
    cluster: a mistake in the logging is better met at the start.
    """

    def __init__(
        self,
        topic: str,
        *,
        zookeeper: str | None = None,
        key: bytes | None = None,
        level: int | str = logging.NOTSET,
        config: ProducerConfig | None = None,
    ) -> None:
        super().__init__(level)
        self.setFormatter(JsonFormatter())
        self.dropped = 0
        self._topic = topic
        self._key = key
        self._cluster = Cluster.from_zookeeper(zookeeper or default_connect())
        try:
            self._cluster.topic(topic, self._cluster.retry_deadline())
            self._producer = Producer(
                self._cluster, config or ProducerConfig(acks=Acks.WRITTEN, max_block_ms=0)
            )
        except BaseException:
            self._cluster.close()
            raise

    def filter(self, record: logging.LogRecord) -> Any:
        if record.name.partition(".")[0] in _OWN:
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            value = self.format(record).encode(errors="backslashreplace")
            self._producer.send(
                self._topic, value, key=self._key, timestamp_us=int(record.created * 1_000_000)
            )
        except BufferExhaustedError:
            self.dropped += 1
        except Exception:  # noqa: BLE001 - as handlers do: who logs must not fail by it
            self.handleError(record)

    def flush(self) -> None:
        """Wait for what was logged, for seconds at most."""
        try:
            self._producer.flush(_FLUSH_S)
        except (DeliveryFailedError, RequestTimeoutError):
            return
        except AttributeError:  # not made: logging flushes all that it met
            return

    def close(self) -> None:
        """Publish what was logged, for which it waits for seconds at most, and stop."""
        try:
            self._producer.close(_FLUSH_S)
        except (LogbusError, AttributeError):
            pass
        finally:
            self._cluster.close()
            super().close()
