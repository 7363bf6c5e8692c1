"""One ZooKeeper session: its life, its state, and requests that survive a lost connection.

A session outlives connections. When the connection breaks the state is SUSPENDED: nothing is
known to have changed, and nothing is thrown away. Only when ZooKeeper, once reached again,
says that the session has expired is the state LOST; ephemeral nodes are gone then, a new
session begins by itself, and CONNECTED follows.

Three threads of kazoo's do the I/O and deliver events; none of them ever runs code that makes
requests. Two workers of ours do: one reports states to listeners, the other refreshes watched
views and calls their callbacks.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    ThrottledOpError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from spark_logbus.clock import Clock, SystemClock
from spark_logbus.errors import (
    CoordinationError,
    WrongAddressError,
    ZooKeeperAccessError,
    ZooKeeperAddressError,
)
from spark_logbus.forks import follow_forks, forked
from spark_logbus.retry import Deadline
from spark_logbus.security.profiles import Digest, profiles_file
from spark_logbus.zookeeper.access import of_profile, things_in
from spark_logbus.zookeeper.connect_string import ENVIRONMENT_VARIABLE, ConnectString
from spark_logbus.zookeeper.diagnosis import Diagnosis, ServerFault
from spark_logbus.zookeeper.kazoo_client import new_client
from spark_logbus.zookeeper.states import SessionState, StateReporter
from spark_logbus.zookeeper.unreadable import UnreadableNodes
from spark_logbus.zookeeper.worker import Worker

logger = logging.getLogger(__name__)

_REVIVE_DELAY_MS = 1_000
_REVIVE_REFUSED_MS = 60_000
_FIRST_WORD_S = 1.0  # of waiting for ZooKeeper without a bound
_LATER_WORDS_S = 60.0
_USUAL_CONNECT_S = 0.3  # from then on the reason is looked for
_LOOK_S = 5.0  # and as a rule found within this
_NAMES_SHOWN = 10
_ZOOKEEPERS_OWN = "/zookeeper"
_REPLY_LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError, RequestTimeoutError)

# Takes kazoo's client, sends one request, returns kazoo's async result.
Submit = Callable[[Any], Any]


class ReplyLostError(CoordinationError):
    """A write may or may not have been done; inside this package only, where it is checked."""


class Session:
    """A ZooKeeper session under one chroot.

    ``start`` waits for ZooKeeper and creates the chroot, as a broker needs it. With
    ``expects_cluster`` it does neither: where no ZooKeeper can be at the address, or there is no
    such chroot, it says so at once.

    Thread-safe and not picklable. In a forked process every operation raises ProcessForkedError:
    each process starts its own.
    Every operation on it waits through a lost connection for at most ``operation_timeout_ms``
    and then raises CoordinationError. With a ``digest``, or one of a profile, nodes that it makes
    are for that user of ZooKeeper's alone. ``start`` waits for ``connect_timeout_ms``; None: until
    ZooKeeper answers or the session is closed, and says now and then that it does.
    """

    def __init__(
        self,
        connect: str,
        *,
        client_name: str,
        session_timeout_ms: int = 10_000,
        connect_timeout_ms: int | None = 15_000,
        operation_timeout_ms: int = 15_000,
        expects_cluster: bool = False,
        digest: Digest | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.connect = ConnectString.parse(connect)
        self.client_name = client_name
        self.access = of_profile(self.connect.profile, digest)
        self.session_timeout_ms = session_timeout_ms
        self.clock: Clock = clock or SystemClock()
        self.unreadable = UnreadableNodes()
        self._connect_timeout_ms = connect_timeout_ms
        self._operation_timeout_ms = operation_timeout_ms
        self._expects_cluster = expects_cluster
        self._granted_ms = session_timeout_ms
        self._client = new_client(
            self.connect.servers,
            session_timeout_ms=session_timeout_ms,
            granted=self._note_granted,
            access=self.access,
            refused=self._on_refused,
        )
        self._client.add_listener(self._on_kazoo_state)
        self._process = os.getpid()
        self._forked = False
        self._make_locks()
        self._state = SessionState.CLOSED
        self._started = False
        self._closed = False
        self._lost = False
        self._refused = False
        self._revive_after_ms = _REVIVE_DELAY_MS
        self._session_id = 0
        self._reconnect_hooks: list[Callable[[bool], None]] = []
        self._state_hook: Callable[[SessionState, int], None] = _ignore
        self._reporter = StateReporter(client_name, self.connect.servers, clock=self.clock)
        self.worker = Worker(f"logbus-zookeeper-watches-{client_name}", clock=self.clock)
        follow_forks(self)

    def _make_locks(self) -> None:
        self._life = threading.RLock()  # kazoo's own start and stop exclude each other
        self._changed = threading.Condition()

    def after_fork(self) -> None:
        """Leave the session to the parent, whose threads keep it."""
        self._make_locks()
        self._forked = True
        self._state = SessionState.CLOSED

    def require_own_process(self) -> None:
        """Raise ProcessForkedError in a process that was forked from the one that made it."""
        if self._forked:
            raise forked(f"The ZooKeeper session of {self.client_name}", self._process)

    # -- life ----------------------------------------------------------------------------

    def start(self) -> None:
        """Connect; CoordinationError when ZooKeeper does not answer within the bound, and with
        ``expects_cluster`` ZooKeeperAddressError as soon as it is clear that none will."""
        with self._changed:
            if self._started:
                raise CoordinationError(
                    "This ZooKeeper session was started before; make a new one instead."
                )
            if self._closed:
                raise self._closed_meanwhile()
            self._started = True
        self._reporter.start()
        self.worker.start()
        try:
            with self._life:
                if not self._closed:
                    self._client.start_async()
            if self._connect_timeout_ms is None:
                self._await_zookeeper()
            else:
                self._await_first_connection(self._connect_timeout_ms)
            if self._expects_cluster:
                self._require_chroot()
            else:
                self._create_chroot()
            if self.access.owner is not None:
                from spark_logbus.zookeeper.guard import Guard  # which stands above

                Guard(self, self._client, self.access.owner).start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes, at once; not in a forked process,
        whose parent has it. Idempotent."""
        if self._forked:
            return
        with self._changed:
            if self._closed:
                return
            self._closed = True
            started = self._started
            self._state = SessionState.CLOSED
            self._changed.notify_all()
        if started:
            if self._session_id:
                self._end_client()
            else:  # it may be in the middle of a greeting that nobody answers
                name = f"logbus-zookeeper-end-{self.client_name}"
                threading.Thread(target=self._end_client, name=name, daemon=True).start()
            self.worker.stop()
            self._reporter.report(SessionState.CLOSED, session_id=self._session_id)
            self._reporter.stop()

    def _end_client(self) -> None:
        try:
            with self._life:
                self._client.stop()
                self._client.close()
        except (KazooException, OSError) as failure:
            logger.warning(
                "The ZooKeeper session of %s could not be ended cleanly (%s); it expires "
                "by itself within %d ms.",
                self.client_name,
                failure,
                self.session_timeout_ms,
            )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_zookeeper(self) -> None:
        """Wait without a bound; CoordinationError when the session is closed meanwhile."""
        began = self.clock.monotonic()
        pause_s = _FIRST_WORD_S
        warned = False
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or self._refused or self._state is SessionState.CONNECTED,
                    pause_s,
                )
                if self._closed:
                    raise self._closed_meanwhile()
                if self._refused:
                    raise self._login_refused()
                connected = self._state is SessionState.CONNECTED
            if connected:
                if warned:
                    logger.info("ZooKeeper at %s answers; going on.", self.connect.servers)
                return
            reason = self._reason()
            if self._closed or self._state is SessionState.CONNECTED:
                continue
            logger.warning(
                "%s is waiting for ZooKeeper at %s, which has not answered for %.0f s%s. It goes "
                "on by itself when that answers; check that it runs, that this machine reaches "
                "it, and that the address is right.",
                self.client_name,
                self.connect.servers,
                self.clock.monotonic() - began,
                f": {reason}" if reason else "",
            )
            pause_s, warned = _LATER_WORDS_S, True

    def _reason(self) -> str | None:
        """The reason why there is no connection, if it is found soon."""
        with self._diagnosis() as diagnosis:
            self._connects(_LOOK_S, lambda: diagnosis.finding() is not None)
            finding = diagnosis.finding()
        return finding.reason if finding else None

    def _diagnosis(self) -> Diagnosis:
        return Diagnosis(self.connect.servers, self._wake, self.access.contexts)

    def _closed_meanwhile(self) -> CoordinationError:
        return CoordinationError("The ZooKeeper session was closed before it was there.")

    def _await_first_connection(self, timeout_ms: int) -> None:
        at = self.clock.monotonic() + timeout_ms / 1000
        if self._connects(min(_USUAL_CONNECT_S, timeout_ms / 1000), lambda: False):
            return
        finding: ServerFault | None = None
        with self._diagnosis() as diagnosis:
            while (remaining_s := at - self.clock.monotonic()) > 0:
                if self._connects(remaining_s, partial(_differs, diagnosis, finding)):
                    return
                if self._closed:
                    raise self._closed_meanwhile()
                last, finding = finding, diagnosis.finding()
                if finding is None or finding == last:
                    continue
                if self._expects_cluster and not finding.there:
                    kind = WrongAddressError if finding.stays else ZooKeeperAddressError
                    raise kind(f"{_sentence(finding.reason)} {self._remedy()}")
                logger.warning("%s is waiting for ZooKeeper: %s.", self.client_name, finding.reason)
        raise CoordinationError(
            f"ZooKeeper at {self.connect.servers} did not answer within "
            f"{timeout_ms} ms{f': {finding.reason}' if finding else ''}. "
            f"{self._remedy()}"
        )

    def _connects(self, seconds: float, enough: Callable[[], bool]) -> bool:
        """Wait up to ``seconds``, or until ``enough`` or closed; true if there is a connection."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or self._refused
                    or self._state is SessionState.CONNECTED
                    or enough()
                ),
                seconds,
            )
            if self._refused:
                raise self._login_refused()
            return self._state is SessionState.CONNECTED

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _remedy(self) -> str:
        if self.connect.is_default:
            return (
                "That is where ZooKeeper is looked for when no address is given. Start a cluster "
                f"on this machine with 'logbus up', and use the line 'export {ENVIRONMENT_VARIABLE}"
                "=...' that it prints; or give the address of yours in the same way."
            )
        check = "Check that ZooKeeper runs and that this machine reaches it, or "
        if self.connect.profile is not None:
            gateway = self.access.at_gateway is not None
            check = check.replace("ZooKeeper", "the broker of that gateway") if gateway else check
            return f"{check}mend {self._profile} ({profiles_file()})."
        return f"{check}name another in the connect string or in {ENVIRONMENT_VARIABLE}."

    def _require_chroot(self) -> None:
        """ZooKeeperAddressError, with what there is instead, unless a broker has made it."""
        chroot, deadline = self.connect.chroot, self.deadline()
        try:
            if self._exists(chroot or "/", deadline):
                return
        except ZooKeeperAccessError as error:
            if self.access.at_gateway is None:
                raise
            raise ZooKeeperAddressError(
                f"The cluster of the gateway at {self.connect.servers} is not at {chroot or '/'}. "
                f"Correct the path behind the address in {self._profile} ({profiles_file()})."
            ) from error
        above = chroot.rpartition("/")[0]
        while above and not self._exists(above, deadline):
            above = above.rpartition("/")[0]
        names = self.call(
            f"list {above or '/'}", lambda client: client.get_children_async(above or "/"), deadline
        )
        paths = [f"{above}/{name}" for name in sorted(names)]
        paths = [path for path in paths if path != _ZOOKEEPERS_OWN]
        there = ", ".join(paths[:_NAMES_SHOWN]) or "nothing"
        raise ZooKeeperAddressError(
            f"ZooKeeper at {self.connect.servers} has no such chroot: {chroot}. There is {there}. "
            "Correct the path behind the address, or start a broker with it, which creates it."
        )

    def _exists(self, path: str, deadline: Deadline) -> bool:
        stat = self.call(f"look at {path}", lambda client: client.exists_async(path), deadline)
        return stat is not None

    def _create_chroot(self) -> None:
        chroot = self.connect.chroot or "/"
        self.call(
            f"create the chroot {chroot}",
            lambda client: client.ensure_path_async(chroot),
            self.deadline(),
        )

    # -- state ---------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the current session, or of the last one; 0 before the first."""
        return self._session_id

    @property
    def granted_ms(self) -> int:
        """The session timeout that ZooKeeper has granted last, or that it is asked for."""
        return self._granted_ms

    def add_listener(self, f: Callable[[SessionState], None]) -> None:
        """Call ``f`` with every new state, in order, on a thread of the session's.

        ``f`` must not block: a slow one delays the next report, though nothing else.
        """
        self._reporter.add(f)

    def add_reconnect_hook(self, f: Callable[[bool], None]) -> None:
        """Has ``f(lost)`` called on kazoo's thread at every CONNECTED; for views of this
        package."""
        with self._changed:
            self._reconnect_hooks.append(f)

    def set_state_hook(self, f: Callable[[SessionState, int], None]) -> None:
        """``f`` learns of CONNECTED and LOST at once, on kazoo's thread, before any listener and
        any view, and of the session timeout in ms that ZooKeeper has granted last, which may be
        less than was asked for; it must neither block nor make requests. There is one such hook."""
        self._state_hook = f

    def _note_granted(self, timeout_ms: int) -> None:
        self._granted_ms = timeout_ms

    def remove_reconnect_hook(self, f: Callable[[bool], None]) -> None:
        with self._changed:
            if f in self._reconnect_hooks:
                self._reconnect_hooks.remove(f)

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        """Runs on kazoo's connection thread."""
        with self._changed:
            if self._closed:
                return
            hooks: list[Callable[[bool], None]] = []
            lost = False
            if kazoo_state == KazooState.CONNECTED:
                state = SessionState.CONNECTED
                self._session_id = self._client.client_id[0]
                hooks = list(self._reconnect_hooks)
                lost, self._lost = self._lost, False
                self._refused, self._revive_after_ms = False, _REVIVE_DELAY_MS
            elif kazoo_state == KazooState.SUSPENDED:
                state = SessionState.SUSPENDED
            else:
                state = SessionState.LOST
                self._lost = True
            self._state = state
            self._changed.notify_all()
        if state is not SessionState.SUSPENDED:
            self._state_hook(state, self._granted_ms)
        for hook in hooks:
            hook(lost)
        self._reporter.report(state, session_id=self._session_id)
        if state is SessionState.LOST and self._client.client_state == KeeperState.CLOSED:
            self._reporter.later(self._revive, delay_ms=_REVIVE_DELAY_MS)

    def _on_refused(self) -> None:
        """Runs on kazoo's connection thread, which ends then. A session that was there before
        goes on trying, ever more slowly: the password may have been changed, and be mended."""
        with self._changed:
            self._refused = True
            delay_ms = self._revive_after_ms
            self._revive_after_ms = min(2 * delay_ms, _REVIVE_REFUSED_MS)
            self._changed.notify_all()
        if self._session_id:
            logger.error("%s It is tried again in %d s.", self._login_refused(), delay_ms // 1000)
            self._reporter.later(self._revive, delay_ms=delay_ms)

    def _login_refused(self) -> ZooKeeperAccessError:
        return ZooKeeperAccessError(
            f"{self.connect.servers} refused the login of {self.access.name}. Check the user and "
            f"the password of {self._profile}."
        )

    def _revive(self) -> None:
        """kazoo's connection thread ended without our asking (a reply that it could not
        understand, or refused credentials) and would never try again by itself."""
        with self._life:
            state = self._client.client_state
            if self._closed or state not in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                return
            if state == KeeperState.CLOSED:
                logger.error("The connection to ZooKeeper ended unexpectedly; it is started anew.")
            try:
                self._client.start_async()
            except (KazooException, OSError):
                logger.exception("The connection to ZooKeeper could not be started anew.")
                self._reporter.later(self._revive, delay_ms=_REVIVE_DELAY_MS)

    # -- requests ------------------------------------------------------------------------

    def deadline(self) -> Deadline:
        """The bound for an operation that starts now."""
        return Deadline.after_ms(self.clock, self._operation_timeout_ms)

    def call(
        self, description: str, submit: Submit, deadline: Deadline, *, check: bool = False
    ) -> Any:
        """Send one request and return its reply.

        After a lost connection it is sent again, unless ``check`` is set: then ReplyLostError
        says that the caller has to look before it writes again. Only kazoo's NoNodeError is
        left for ``nodes`` to translate.
        """
        while True:
            self._await_connection(description, deadline)
            try:
                return _answered(submit(self._client), deadline.remaining_s)
            except _REPLY_LOST as lost:
                if check and not self._closed:
                    raise ReplyLostError(
                        f"The connection to ZooKeeper broke before it answered ({description})."
                    ) from lost
            except ThrottledOpError:
                self.pause(min(0.1, deadline.remaining_s))
            except KazooTimeoutError as failure:
                raise self._unreachable(description, deadline) from failure
            except NoNodeError:
                raise
            except AuthFailedError as failure:
                raise self._login_refused() from failure
            except NoAuthError as failure:
                raise self.access_refused(description) from failure
            except KazooException as failure:
                raise CoordinationError(
                    f"ZooKeeper at {self.connect.servers} refused to {description} "
                    f"({type(failure).__name__}); see its log."
                ) from failure

    def access_refused(self, description: str, paths: Iterable[str] = ()) -> ZooKeeperAccessError:
        """Returns the error for something that ZooKeeper does not let this session do, to the nodes
        of these ``paths`` or those that the description names."""
        if self.access.at_gateway is not None:
            return ZooKeeperAccessError(
                f"The gateway at {self.connect.servers} does not let {self.access.name} "
                f"{description}: no access rule allows it. Ask an administrator of the cluster for "
                f"one about {things_in(description, paths)} (logbus acls add)."
            )
        return ZooKeeperAccessError(
            f"{self.connect.servers} does not let {self.access.name} {description} (NoAuth). The "
            "nodes of this cluster belong to a user of ZooKeeper: log in by a profile, with a "
            "gateway of the brokers (--profile NAME, LOGBUS_PROFILE, Spark's option profile), or "
            "with zookeeper_user."
        )

    @property
    def _profile(self) -> str:
        """The profile that the address names, for messages."""
        profile = self.connect.profile
        return "the login" if profile is None else f"the profile {profile.name!r}"

    def _await_connection(self, description: str, deadline: Deadline) -> None:
        """Requests are not handed to kazoo while there is no connection: it would queue them
        without a bound and send them long after we gave up."""
        self.require_own_process()
        with self._changed:
            while True:
                if self._closed or not self._started:
                    raise CoordinationError(
                        "The connection to ZooKeeper is closed, so nothing can be asked there "
                        f"({description}). Connect again; where that is said of a broker, query or "
                        "job, it was being stopped."
                    )
                if self._refused:
                    raise self._login_refused()
                if self._state is SessionState.CONNECTED and self._client.connected:
                    if deadline.expired:
                        raise self._unreachable(description, deadline)
                    return
                if not self._changed.wait(deadline.remaining_s) and deadline.expired:
                    raise self._unreachable(description, deadline)

    def pause(self, seconds: float) -> None:
        """Waits, but no longer than until the session is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def _unreachable(self, description: str, deadline: Deadline) -> CoordinationError:
        return CoordinationError(
            f"ZooKeeper at {self.connect.servers} did not answer within {deadline.timeout_ms} ms "
            f"({description}; the session is {self._state.value}). It may or may not have been "
            "done. Check that ZooKeeper runs and that this machine reaches it, then try again."
        )


def _answered(result: Any, timeout_s: float) -> Any:
    """Returns what kazoo's async result brings. A result keeps the error that it raises, which
    would keep the frames of all who wait for it, and what they work with."""
    try:
        return result.get(timeout=timeout_s)
    except (KazooException, KazooTimeoutError) as failure:
        raise failure.with_traceback(None) from None
    finally:
        del result


def _ignore(_: SessionState, __: int) -> None:
    """Stands in the place of a hook that was not set."""


def _differs(diagnosis: Diagnosis, finding: ServerFault | None) -> bool:
    return diagnosis.finding() != finding


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."
