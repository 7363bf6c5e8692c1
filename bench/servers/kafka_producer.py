"""librdkafka's producer as the benchmarks use it: what it could not send ends the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

_DEADLINE_S: Final = 120.0


class KafkaProducer:
    """Sends records, and has only failures reported. For one thread."""

    def __init__(self, bootstrap: str, **settings: Any) -> None:
        from confluent_kafka import Producer  # imported here: an extra

        self._failed: list[str] = []
        self.producer: Any = Producer(
            {
                **{name.replace("_", "."): value for name, value in settings.items()},
                "bootstrap.servers": bootstrap,
                "delivery.report.only.error": True,
                "on_delivery": lambda error, _: self._failed.append(str(error)),
            }
        )

    def send(self, topic: str, rows: Iterable[tuple[Any, ...]], **of_all: Any) -> None:
        """Hands over records, each a value, or with its key, or with its partition too."""
        produce = self.producer.produce
        for row in rows:
            while True:
                try:
                    produce(topic, *row, **of_all)
                    break
                except BufferError:  # the queue is full: let some of it go
                    self.producer.poll(0.01)
        self.producer.poll(0)
        self._require(0)

    def flush(self) -> None:
        """Waits until all is acknowledged; raises SystemExit where something is not."""
        self._require(self.producer.flush(_DEADLINE_S))

    def _require(self, left: int) -> None:
        if left or self._failed:
            count = left or len(self._failed)
            raise SystemExit(f"Kafka did not take {count} records: {self._failed[:1]}.")
