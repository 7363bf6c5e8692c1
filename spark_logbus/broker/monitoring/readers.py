"""Readers of a broker's metrics: who is one."""

from __future__ import annotations

from spark_logbus.broker.config import MetricsConfig
from spark_logbus.broker.monitoring.health import Health, Phase
from spark_logbus.broker.security.security import Security
from spark_logbus.clock import Clock
from spark_logbus.http import HttpError, Request
from spark_logbus.security.acls import EVERYBODY, Operation, Resource
from spark_logbus.security.attempts import LoginLimits
from spark_logbus.security.http_logins import HttpLogins
from spark_logbus.security.identity import Identity
from spark_logbus.security.passwords import PasswordCheck


class Readers:
    """Tells who may read: everybody, or who may DESCRIBE the cluster. Thread-safe."""

    def __init__(
        self, config: MetricsConfig, security: Security | None, health: Health, clock: Clock
    ) -> None:
        self._security = security if config.authenticate else None
        self._health = health
        self._logins = None
        if self._security is not None:
            find = self._security.state.credential
            passwords = PasswordCheck(find, limits=LoginLimits(clock), clock=clock)
            self._logins = HttpLogins(passwords, self._security.audit)

    def require(self, request: Request) -> None:
        """Raises HttpError for who may not read metrics."""
        security, logins = self._security, self._logins
        if security is None or logins is None:
            return
        if self._health.phase not in (Phase.SERVING, Phase.STOPPING):
            raise HttpError(
                503, "The broker starts, and does not know yet who may read metrics; see /healthz."
            )
        identity = Identity(logins.principal(request))
        what = Operation.DESCRIBE, Resource.CLUSTER, EVERYBODY
        if not security.authorization.allows(identity, *what):
            security.audit.denied(identity, request.address, "METRICS", "describe the cluster")
            raise HttpError(
                403,
                f"{identity.principal} may not describe the cluster, whose metrics these are. Ask "
                "an administrator of it (logbus acls add).",
            )
