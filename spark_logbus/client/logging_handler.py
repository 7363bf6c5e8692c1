"""A ``logging.Handler`` that publishes log records to a topic."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

from spark_logbus.client.arguments import as_bytes
from spark_logbus.client.config import ProducerConfig
from spark_logbus.client.log_publisher import LogPublisher
from spark_logbus.forks import follow_forks
from spark_logbus.model import Acks, check_name

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
    """Publishes log records to ``topic``, as JSON unless a formatter is set. Thread-safe.

    It never holds up a program that logs, and never fails it: a thread of its own connects when the
    first record is logged, and tries again until it succeeds; until then records wait. Records that
    find ``buffer_bytes`` of ``config`` taken are dropped, as are those that no broker takes. They
    are counted in ``dropped``, and told on the standard error unless ``logging.raiseExceptions`` is
    off. ``config`` is by default of ``acks`` written; its ``max_block_ms`` has no meaning here.

    ``key`` is that of all records; None spreads them over the partitions. ``zookeeper`` is by
    default that of ``LOGBUS_ZOOKEEPER``, or the local one. What logbus and kazoo log is not
    published.

    ``flush`` and ``close`` wait for what was logged for 5 seconds at most, and so does the end of
    the program. Within ``logging.config``, which holds up all threads that log, they do not wait:
    the thread sends what there is, and ends after that. In a process that was forked the handler
    begins anew, and its parent sends what was logged before.

    Raises InvalidNameError for what cannot name a topic, and InvalidRequestError for a key that is
    not bytes.
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
        self._topic = check_name("topic", topic)
        self._zookeeper = zookeeper
        self._key = None if key is None else as_bytes("key", key)
        self._config = config or ProducerConfig(acks=Acks.WRITTEN)
        self._publisher = self._new_publisher()
        super().__init__(level)
        self.setFormatter(JsonFormatter())
        follow_forks(self)

    def _new_publisher(self) -> LogPublisher:
        return LogPublisher(
            self._topic, zookeeper=self._zookeeper, key=self._key, config=self._config
        )

    @property
    def dropped(self) -> int:
        """The number of log records that were not published by this process."""
        return self._publisher.dropped

    def filter(self, record: logging.LogRecord) -> Any:
        if record.name.partition(".")[0] in _OWN or self._publisher.is_own_thread(record.thread):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            value = self.format(record).encode(errors="backslashreplace")
            self._publisher.put(value, int(record.created * 1_000_000))
        except Exception as error:  # noqa: BLE001 - as handlers do: who logs must not fail by it
            self._publisher.count_dropped(f"it could not be formatted: {error!r}")
            self.handleError(record)

    def flush(self) -> None:
        """Wait for what was logged, for 5 seconds at most."""
        self._publisher.flush(0.0 if _is_being_configured() else _FLUSH_S)

    def close(self) -> None:
        """Publish what was logged, for which it waits for 5 seconds at most, and stop."""
        self.flush()
        self._publisher.close()
        super().close()

    def after_fork(self) -> None:
        """Begin anew in the child: the parent sends what was logged before."""
        self._publisher = self._new_publisher()


def _is_being_configured() -> bool:
    """True if this thread holds the lock of ``logging``, as ``logging.config`` does when it closes
    earlier handlers. Others that log may need it before they can do anything."""
    is_owned = getattr(getattr(logging, "_lock", None), "_is_owned", None)
    return is_owned is not None and bool(is_owned())
