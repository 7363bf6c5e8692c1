"""A broker whose disk can lose power, as a program: ``logbus broker`` on ``JournalingFiles``."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

from spark_logbus.broker import Broker, load_broker_config
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.local.processes import spawn
from tests.fakes.disk import Survival
from tests.fault.forgetful_files import JournalingFiles, PowerLoss

ROOT = Path(__file__).parents[2]


class ForgetfulBroker(BrokerProcess):
    """Runs such a broker in a child process. Use from one thread at a time."""

    def __init__(self, directory: Path, *, zookeeper: str, settings: dict[str, dict[str, int]]):
        super().__init__(1, directory, zookeeper=zookeeper, settings=settings)
        self._journal = directory / "journal"
        self._power = PowerLoss(directory / "data", self._journal)

    def launch(self) -> None:
        config = self.directory / "broker.toml"
        config.write_text(self._toml(), "utf-8")
        self._ready_file.unlink(missing_ok=True)
        program = command(config, self._ready_file, self._journal)
        self._process = spawn(program, output=self.log_file, cwd=ROOT)

    def lose_power(self, survival: Survival) -> None:
        """The process is gone, and so is what was not synced, but for what survives."""
        self.kill()
        self._power.strike(survival)


def command(config_file: Path, ready_file: Path, journal: Path) -> list[str]:
    """Returns the command that runs such a broker, in this project's directory."""
    arguments = [str(path) for path in (config_file, ready_file, journal)]
    return [sys.executable, "-m", "tests.fault.forgetful_broker", *arguments]


def main(config_file: Path, ready_file: Path, journal: Path) -> None:
    config = load_broker_config(config_file)
    broker = Broker(config, files=JournalingFiles(config.data_dir, journal))
    broker.start()
    fresh = ready_file.with_suffix(".new")
    fresh.write_text(f"{broker.address.host}:{broker.address.port}\n")
    fresh.replace(ready_file)
    threading.Event().wait()  # for the end, which is a kill


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    main(*map(Path, sys.argv[1:]))
