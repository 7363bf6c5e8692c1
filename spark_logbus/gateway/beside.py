"""A broker and its gateway as one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_logbus.broker import Broker, BrokerConfig

if TYPE_CHECKING:
    from spark_logbus.gateway.gateway import Gateway


class BrokerWithGateway:
    """A broker, and the gateway beside it if its configuration has one, as one server."""

    def __init__(self, config: BrokerConfig) -> None:
        self.broker: Final = Broker(config)
        self.gateway: Final = None if config.gateway.port is None else _gateway(self.broker)

    def start(self) -> None:
        if self.gateway is None:
            self.broker.start()
            return
        self.broker.gateway_port = self.gateway.bind()
        try:
            self.broker.start()
        except BaseException:
            self.gateway.stop()
            raise
        try:
            self.gateway.start()
        except BaseException:
            self.stop()
            raise

    def give_up_start(self) -> None:
        self.broker.give_up_start()

    def stop(self) -> None:
        if self.gateway is not None:
            self.gateway.stop()
        self.broker.stop()


def _gateway(broker: Broker) -> Gateway:
    from spark_logbus.gateway.gateway import Gateway  # a broker without one needs no asyncio

    return Gateway(broker)
