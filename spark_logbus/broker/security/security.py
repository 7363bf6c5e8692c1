"""All of a broker's security, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.security.authentication import Authentication
from spark_logbus.broker.security.authorization import Authorization
from spark_logbus.broker.security.known import SecurityState
from spark_logbus.clock import Clock
from spark_logbus.security.audit_log import AuditLog
from spark_logbus.security.logins import Login, TokenLogin
from spark_logbus.security.tokens import Claims
from spark_logbus.threads import Periodic
from spark_logbus.zookeeper.session import Session

logger = logging.getLogger(__name__)

_RENEW_EVERY_S: Final = 600.0
# A broker shows a token of its own to another one at each connection, and no later. It lasts for as
# long as the clocks of two brokers may be apart.
_BROKER_TOKEN_US: Final = 600 * 1_000_000


@dataclass(slots=True)
class GatewayCounts:
    """Numbers of the gateway beside this broker, which its thread writes."""

    sessions: int = 0
    refused: int = 0


class Security:
    """Logins, decisions and keys of one broker."""

    def __init__(
        self, config: BrokerConfig, session: Session, *, clock: Clock, now_us: Callable[[], int]
    ) -> None:
        self._config = config
        self.now_us: Final = now_us
        self.audit = AuditLog(clock)
        #: The ZooKeeper session by which all this is known.
        self.session: Final = session
        self.clock: Final = clock
        self.gateway = GatewayCounts()
        self.state = SecurityState(session, audit=self.audit, stamp_us=now_us)
        self.authentication = Authentication(
            config.security, self.state, audit=self.audit, clock=clock, now_us=now_us
        )
        self.authorization = Authorization(
            self.state,
            is_super=self.authentication.is_super,
            audit=self.audit,
            now_us=now_us,
            authorizes=config.security.authorize,
            takes_anybody=config.security.anonymous and not config.security.authorize,
        )
        self.thread = Periodic(
            "token-keys",
            self.state.renew_keys,
            pause_s=_RENEW_EVERY_S,
            failure="The keys of tokens could not be renewed; it is tried again.",
        )
        if config.security.anonymous:
            logger.warning(
                "Who proves nothing is taken all the same ([security] anonymous): end that when "
                "all brokers are secured and all clients have profiles."
            )
        if config.tls.server is None:
            logger.warning(
                "Clients are asked who they are, but connections are not encrypted ([tls]): "
                "whoever is on the network reads records, and tokens of tasks and brokers."
            )

    def login(self) -> Login:
        """Returns the login of this broker at others."""
        return TokenLogin(get=self._own_token)

    def _own_token(self) -> bytes:
        owner, expires_us = f"broker:{self._config.id}", self.now_us() + _BROKER_TOKEN_US
        return self.state.token(lambda key_id: Claims(key_id, owner, expires_us))
