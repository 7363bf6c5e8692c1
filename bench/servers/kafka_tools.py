"""Kafka's own measuring consumer, in Java, as its bin/kafka-consumer-perf-test.sh starts it."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.servers import ServerUnavailableError
from bench.servers.artifacts import jars_of
from spark_logbus.errors import JavaNotFoundError
from spark_logbus.local.java import java_executable

_HERE = Path(__file__).resolve().parent
_DEADLINE_S = 300.0
_JVM_OPTIONS = (
    "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip


class Consumed(NamedTuple):
    records: int
    seconds: float
    """From the assignment of partitions to the last record."""


@dataclass(frozen=True)
class KafkaTools:
    java: Path
    jars: Sequence[Path]

    def consume(
        self, bootstrap: str, topic: str, *, records: int, settings: Mapping[str, str]
    ) -> Consumed:
        """Read so many records from the topic's beginning, in a fresh process."""
        command = [
            str(self.java), *_JVM_OPTIONS, "-cp", ":".join(map(str, self.jars)),
            "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", bootstrap,
            "--topic", topic, "--num-records", str(records),
            *(part for pair in settings.items() for part in ("--command-property", "=".join(pair))),
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S)
        lines = [line for line in ended.stdout.splitlines() if "," in line]
        if ended.returncode != 0 or len(lines) < 2:
            raise SystemExit(
                f"ConsumerPerformance ended with code {ended.returncode}: "
                f"{ended.stdout}{ended.stderr}"
            )
        told = next(csv.DictReader(lines, skipinitialspace=True))
        return Consumed(int(told["data.consumed.in.nMsg"]), int(told["fetch.time.ms"]) / 1_000)


def kafka_tools() -> KafkaTools:
    """Raises ServerUnavailableError where they are not at hand."""
    try:
        java = java_executable()
    except JavaNotFoundError as error:
        raise ServerUnavailableError(str(error)) from error
    return KafkaTools(java, jars_of(_HERE / "kafka-tools.xml"))
