"""Names that a shell completes: of topics, groups and subjects, as ZooKeeper has them.

A shell waits for the answer at each press of the tab key: it is given soon or not at all, and no
error is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from spark_logbus.errors import LogbusError

if TYPE_CHECKING:
    from spark_logbus.zookeeper import Session

_PATIENCE_MS: Final = 1_000


def topic_names(ctx: Any, incomplete: str) -> list[str]:
    """Topics that begin with ``incomplete``."""
    from spark_logbus.coordination.cluster.topics import TopicRegistry

    return _completed(ctx, incomplete, lambda session: sorted(TopicRegistry(session).all()))


def group_names(ctx: Any, incomplete: str) -> list[str]:
    """Groups that begin with ``incomplete``."""
    from spark_logbus.client.admin.stored_groups import StoredGroups

    return _completed(ctx, incomplete, lambda session: StoredGroups(session).names())


def subject_names(ctx: Any, incomplete: str) -> list[str]:
    """Subjects of schemas that begin with ``incomplete``."""
    from spark_logbus.schemas.registry import SchemaRegistry

    return _completed(ctx, incomplete, lambda session: SchemaRegistry(session).subjects(incomplete))


def _completed(ctx: Any, incomplete: str, names: Callable[[Session], list[str]]) -> list[str]:
    from spark_logbus.zookeeper import Session, default_connect

    logging.disable()
    connect = ctx.params.get("zookeeper") or default_connect()
    try:
        with Session(
            connect,
            client_name="logbus-completion",
            connect_timeout_ms=_PATIENCE_MS,
            operation_timeout_ms=_PATIENCE_MS,
            expects_cluster=True,
        ) as session:
            return [name for name in names(session) if name.startswith(incomplete)]
    except LogbusError:
        return []
    finally:
        logging.disable(logging.NOTSET)
