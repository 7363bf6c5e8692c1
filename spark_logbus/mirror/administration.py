"""What is done to a mirror that does not run."""

from __future__ import annotations

import os
import platform
from dataclasses import replace

from spark_logbus.coordination.locks import Lock
from spark_logbus.coordination.mirrors import Mirrors
from spark_logbus.errors import InvalidRequestError
from spark_logbus.zookeeper import Session


def mirror_lock(session: Session, name: str, *, doing: str) -> Lock:
    """The lock that who runs a mirror, or changes its state, holds."""
    holder = f"{doing} on {platform.node()} (process {os.getpid()})"
    return Lock(session, f"mirror {name}", holder=holder)


def forget_topic(name: str, topic: str, *, session: Session) -> None:
    """Let a mirror know nothing of a topic any more, so that it begins anew there. LockHeldError
    while the mirror runs, InvalidRequestError if it knows nothing of the topic."""
    mirrors = Mirrors(session)
    with mirror_lock(session, name, doing=f"a command that forgets {topic}"):
        before = mirrors.read(name)
        if topic not in before.topics:
            known = ", ".join(sorted(before.topics)) or "none"
            raise InvalidRequestError(
                f"The mirror {name!r} has copied nothing of the topic {topic!r}; its topics are: "
                f"{known}."
            )
        topics = {each: entry for each, entry in before.topics.items() if each != topic}
        mirrors.write(name, before, replace(before, topics=topics))
