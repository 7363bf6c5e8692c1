"""The handshake request."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus import __version__
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.errors import InvalidRequestError
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    HandshakeRequest,
    HandshakeResponse,
    encode_response,
)


class HandshakeHandler:
    """Opens connections to requests. Thread-safe, keeps nothing."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.HANDSHAKE: self.handle}

    def handle(self, request: HandshakeRequest, context: RequestContext) -> Answer:
        if request.protocol_version < PROTOCOL_VERSION:
            raise InvalidRequestError(
                f"The client speaks protocol version {request.protocol_version}, this broker "
                f"needs {PROTOCOL_VERSION} or newer; upgrade the client."
            )
        context.connection.handshake_done()
        return Response(
            encode_response(
                HandshakeResponse(
                    broker_id=self._config.id,
                    protocol_version=PROTOCOL_VERSION,
                    max_frame_bytes=self._config.network.max_frame_bytes,
                    max_record_batch_bytes=self._config.log.max_record_batch_bytes,
                    software=f"logbus {__version__}",
                )
            )
        )
