"""The handshake request."""

from __future__ import annotations

from collections.abc import Mapping

from spark_logbus import __version__
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.handler import Handle, RequestContext
from spark_logbus.broker.security.authentication import Authentication
from spark_logbus.errors import AuthenticationError, InvalidRequestError
from spark_logbus.network import Answer, Response
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    HandshakeRequest,
    HandshakeResponse,
    encode_response,
)
from spark_logbus.security import tokens


class HandshakeHandler:
    """Opens connections to requests, of those who have proved who they are where that is asked.
    Thread-safe."""

    def __init__(self, config: BrokerConfig, authentication: Authentication | None) -> None:
        self._config = config
        self._authentication = authentication

    def handlers(self) -> Mapping[Api, Handle]:
        return {Api.HANDSHAKE: self.handle}

    def handle(self, request: HandshakeRequest, context: RequestContext) -> Answer:
        if request.protocol_version < PROTOCOL_VERSION:
            raise InvalidRequestError(
                f"The client speaks protocol version {request.protocol_version}, this broker "
                f"needs {PROTOCOL_VERSION} or newer; upgrade the client."
            )
        connection, data, is_over = context.connection, b"", True
        if self._authentication is not None:
            if connection.handshaken:
                raise InvalidRequestError("The handshake of this connection is over.")
            data, is_over = self._authentication.answer(connection, request)
        elif request.mechanism not in ("", tokens.MECHANISM):
            # A token is shown by brokers that are secured already; nobody looks at it.
            raise AuthenticationError(
                "This broker asks nobody who they are ([security] authenticate is off), so nobody "
                "can log in. Take user and password out of the profile."
            )
        if is_over:
            connection.handshake_done()
        return Response(
            encode_response(
                HandshakeResponse(
                    broker_id=self._config.id,
                    protocol_version=PROTOCOL_VERSION,
                    max_frame_bytes=self._config.network.max_frame_bytes,
                    max_record_batch_bytes=self._config.log.max_record_batch_bytes,
                    software=f"logbus {__version__}",
                    data=data,
                    goes_on=not is_over,
                )
            )
        )
