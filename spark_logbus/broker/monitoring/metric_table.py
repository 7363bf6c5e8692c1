"""Every metric of a broker: one row each.

To add one, add a row: name (without ``logbus_``), kind, the sentence that explains it, labels,
and a function that reads it from the broker's ``MetricSources``. Units are base units and stand in
the name (``_seconds``, ``_bytes``); counters get their ``_total`` when they are shown. Then run
scripts/docs, which writes the table in docs/operations.md.

A read runs on the HTTP thread at each scrape: it must not block, and take no lock for long. What
happens on the path of requests is counted there by a ``Counter`` or ``Histogram`` of
``spark_logbus.metrics``, and only read here.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spark_logbus import __version__
from spark_logbus.broker.compaction.run import CompactionStats
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.handlers.request_metrics import RequestMetrics, name_of
from spark_logbus.broker.metadata_cache import MetadataCache
from spark_logbus.broker.monitoring.health import Health, SessionWatch
from spark_logbus.broker.monitoring.moves import MovesHere
from spark_logbus.broker.publisher import Publisher
from spark_logbus.broker.replica.followers import Followers
from spark_logbus.broker.replica.following import Following
from spark_logbus.broker.replica.hand_over import HandOverStats
from spark_logbus.broker.replica.in_sync import InSync
from spark_logbus.broker.replica.manager import ReplicaManager
from spark_logbus.broker.security.security import Security
from spark_logbus.errors import StorageError
from spark_logbus.log import LogDirectory, LogEnds, PartitionLog
from spark_logbus.metrics import Distribution
from spark_logbus.network import Network
from spark_logbus.zookeeper import Session, SessionState


@dataclass(kw_only=True)
class MetricSources:
    """The parts of the broker that metrics are read from."""

    config: BrokerConfig
    logs: LogDirectory
    replica_manager: ReplicaManager
    metadata_cache: MetadataCache
    followers: Followers
    following: Following
    moves: MovesHere
    hand_overs: HandOverStats
    in_sync: InSync
    publisher: Publisher
    requests: RequestMetrics
    network: Network | None = None  # until the port is bound
    session: Session
    session_watch: SessionWatch
    health: Health
    compaction: CompactionStats
    security: Security | None  # where clients are asked who they are


Labels = tuple[str, ...]
Sample = tuple[Labels, float | Distribution]


class MetricKind(enum.Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """``per_partition`` ones have a series for each partition and can be switched off."""

    name: str
    kind: MetricKind
    help: str
    labels: Labels
    read: Callable[[MetricSources], Iterable[Sample]]
    per_partition: bool = False


def _one(
    read: Callable[[MetricSources], float | Distribution],
) -> Callable[[MetricSources], Iterable[Sample]]:
    """A metric without labels."""
    return lambda sources: [((), read(sources))]


def _network(read: Callable[[Network], float]) -> Callable[[MetricSources], Iterable[Sample]]:
    def samples(sources: MetricSources) -> list[Sample]:
        network = sources.network
        return [] if network is None else [((), read(network))]

    return samples


def _partition(name: str, text: str, read: Callable[[PartitionLog, LogEnds], float]) -> Metric:
    def samples(sources: MetricSources) -> Iterator[Sample]:
        for log in sources.logs.logs():
            where = log.topic_partition
            yield (where.topic, str(where.partition)), read(log, log.ends())

    return Metric(name, MetricKind.GAUGE, text, ("topic", "partition"), samples, per_partition=True)


def _topic_in(name: str, text: str, read: Callable[[PartitionLog], int]) -> Metric:
    def samples(sources: MetricSources) -> list[Sample]:
        sums: dict[str, int] = {}
        for log in sources.logs.logs():
            topic = log.topic_partition.topic
            sums[topic] = sums.get(topic, 0) + read(log)
        return [((topic,), count) for topic, count in sums.items()]

    return Metric(name, MetricKind.COUNTER, text, ("topic",), samples)


def _bytes_out(sources: MetricSources) -> list[Sample]:
    topics = {log.topic_partition.topic for log in sources.logs.logs()}
    counted = sources.requests.bytes_out(topics)
    return [((topic,), counted.get(topic, 0)) for topic in topics]


def _by_api(sources: MetricSources) -> list[tuple[Labels, Distribution]]:
    return [((name_of(api),), taken.read()) for api, taken in sources.requests.seconds.items()]


def _dirty_ratios(sources: MetricSources) -> list[Sample]:
    ratios = sources.compaction.dirty_ratios
    return [((where.topic, str(where.partition)), ratio) for where, ratio in ratios.items()]


def _disk(free: bool) -> Callable[[MetricSources], Iterable[Sample]]:
    def samples(sources: MetricSources) -> list[Sample]:
        try:
            disk = os.statvfs(sources.config.data_dir)
        except OSError:
            return []
        return [((), (disk.f_bavail if free else disk.f_blocks) * disk.f_frsize)]

    return samples


def _denials(sources: MetricSources) -> list[Sample]:
    if sources.security is None:
        return []
    denials = sources.security.authorization.denials
    return [((name_of(api),), count.value) for api, count in denials.items()]


def _logins(sources: MetricSources) -> list[Sample]:
    if sources.security is None:
        return []
    logins = sources.security.authentication.logins
    return [(labels, count.value) for labels, count in logins.items()]


def _certificate_left_s(sources: MetricSources) -> list[Sample]:
    network = sources.network
    expires_s = None if network is None else network.certificate_expires_s()
    if expires_s is None:
        return []
    return [((), expires_s - sources.logs.clock.time.stamp_us() / 1e6)]


def _clock_refused_s(logs: LogDirectory) -> float:
    jump = logs.clock.time.jump
    return 0.0 if jump is None else (jump.shown_us - jump.expected_us) / 1e6


_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    # -- the broker
    Metric("build_info", _GAUGE, "Always 1; the labels say which broker of which version it is.",
           ("version", "broker"), lambda s: [((__version__, str(s.config.id)), 1)]),
    Metric("healthy", _GAUGE, "1 when /healthz answers 200.", (),
           _one(lambda s: s.health.report().healthy)),
    Metric("cluster_brokers", _GAUGE, "Brokers that are registered in ZooKeeper.", (),
           _one(lambda s: len(s.metadata_cache.brokers))),
    Metric("partitions_led", _GAUGE, "Partitions that this broker leads.", (),
           _one(lambda s: len(s.replica_manager.led()))),
    Metric("partitions_append_refused", _GAUGE,
           "Partitions that are served and whose disk refuses appends: it is full, or read-only.",
           (), _one(lambda s: s.logs.stats.refused.count)),
    Metric("partitions_offline", _GAUGE,
           "Partitions that take no appends, or whose log could not be opened.", (),
           _one(lambda s: len(s.health.offline()))),
    Metric("partitions_refused", _GAUGE,
           "Partitions that are not served: their log is missing, too short or cannot be opened.",
           (), _one(lambda s: len(s.replica_manager.refused()))),
    Metric("replicas_not_following", _GAUGE,
           "Replicas that cannot follow their leaders for what is wrong here or there; /healthz "
           "says why.", (), _one(lambda s: len(s.following.troubles()))),
    # -- moves to other brokers
    Metric("moves_out", _GAUGE, "Partitions that are on their way from this broker to another.", (),
           _one(lambda s: s.moves.leaving())),
    Metric("moves_in", _GAUGE, "Partitions that are on their way to this broker.", (),
           _one(lambda s: s.moves.coming())),
    Metric("moves_failed", _GAUGE,
           "Moves from and to this broker that have failed, until they are begun again or "
           "cancelled; /healthz says why.", (), _one(lambda s: len(s.moves.failed()))),
    Metric("moves_stuck", _GAUGE,
           "Partitions that have been copied in part, and not further for a minute.", (),
           _one(lambda s: len(s.moves.stuck()))),
    Metric("move_received_bytes", _COUNTER,
           "Bytes of logs, and of what is staged, that were copied from their leaders.", (),
           _one(lambda s: s.following.received_bytes.value)),
    Metric("move_sent_bytes", _COUNTER, "Bytes of logs that were sent to new brokers.", (),
           _one(lambda s: s.followers.sent_bytes.value)),
    Metric("hand_overs", _COUNTER, "Partitions whose lead was handed over to another broker.", (),
           _one(lambda s: s.hand_overs.done.value)),
    Metric("hand_overs_put_off", _COUNTER,
           "Hand-overs that were tried and are tried again later; the log of the broker says why.",
           (), _one(lambda s: s.hand_overs.put_off.value)),
    Metric("hand_over_seconds", _HISTOGRAM,
           "How long partitions took no appends while their lead was handed over.", (),
           _one(lambda s: s.hand_overs.pauses.read())),
    # -- replicas
    Metric("partitions_under_replicated", _GAUGE,
           "Partitions that this broker leads, and of which not all replicas are in sync.", (),
           _one(lambda s: s.in_sync.under_replicated())),
    Metric("partitions_under_min_in_sync", _GAUGE,
           "Partitions led here with fewer replicas in sync than min.insync.replicas asks for: "
           "what is to be replicated is refused.", (),
           _one(lambda s: s.in_sync.under_min_in_sync())),
    Metric("in_sync_left", _COUNTER,
           "Replicas that were dropped from in-sync sets: their brokers were gone, or lagged.", (),
           _one(lambda s: s.in_sync.stats.left.value)),
    Metric("in_sync_joined", _COUNTER,
           "Replicas that were taken into in-sync sets, as they had all that was acknowledged.",
           (), _one(lambda s: s.in_sync.stats.joined.value)),
    Metric("elections", _COUNTER,
           "Elections that made this broker the leader of a partition whose leader was gone.", (),
           _one(lambda s: s.replica_manager.elections.won.value)),
    Metric("elections_lost", _COUNTER,
           "Elections in which this broker tried to lead a partition, and another broker or "
           "ZooKeeper was faster.",
           (), _one(lambda s: s.replica_manager.elections.lost.value)),
    Metric("unclean_elections", _COUNTER,
           "Elections of this broker though it was not in sync, on an operator's word or as the "
           "topic's configuration allows: records are lost, and its log names their offsets.",
           (), _one(lambda s: s.replica_manager.elections.unclean.value)),
    Metric("election_seconds", _HISTOGRAM,
           "How long partitions had no leader before this broker was elected, from when it knew of "
           "that.",
           (), _one(lambda s: s.replica_manager.elections.times.read())),
    # -- topics
    _topic_in("topic_bytes_in", "Bytes of record batches that were appended.",
              lambda log: log.appended.size_bytes),
    _topic_in("topic_records_in", "Records that were appended, each once.",
              lambda log: log.appended.records),
    _topic_in("topic_record_batches_in", "Record batches that were appended.",
              lambda log: log.appended.record_batches),
    Metric("topic_bytes_out", _COUNTER,
           "Bytes that answered fetches. Records are not counted: the broker does not see them.",
           ("topic",), _bytes_out),
    # -- requests
    Metric("requests", _COUNTER, "Requests that were answered, or wanted no answer.", ("api",),
           lambda s: [(labels, taken.cumulative[-1]) for labels, taken in _by_api(s)]),
    Metric("request_errors", _COUNTER,
           "Requests, or their parts for one partition, that were answered with an error.",
           ("api", "error"), lambda s: s.requests.errors().items()),
    Metric("request_seconds", _HISTOGRAM,
           "From a request to its answer, with the wait for a flush or for records.", ("api",),
           _by_api),
    Metric("fetch_wait_seconds", _HISTOGRAM,
           "How long fetches waited that found too few records at first.", (),
           _one(lambda s: s.requests.fetch_wait.read())),
    Metric("requests_in_flight", _GAUGE,
           "Requests that are not answered yet, waiting fetches among them.", (),
           _network(lambda network: network.waiting())),
    # -- connections
    Metric("connections", _GAUGE, "Open connections of clients.", (),
           _network(lambda network: network.connection_count)),
    Metric("connections_limit", _GAUGE, "max_connections of the configuration.", (),
           _one(lambda s: s.config.network.max_connections)),
    Metric("connections_accepted", _COUNTER, "Connections that were let in.", (),
           _network(lambda network: network.accepted)),
    Metric("connections_refused", _COUNTER, "Connections that were turned away.", (),
           _network(lambda network: network.refused)),
    # -- security
    Metric("logins", _COUNTER,
           "Handshakes of clients by how they proved who they are, and what became of it: limited "
           "ones were not looked at, as too many had failed before.", ("mechanism", "outcome"),
           _logins),
    Metric("denials", _COUNTER, "Requests that were refused for want of a right.", ("api",),
           _denials),
    Metric("tls_handshakes_failed", _COUNTER,
           "Handshakes of TLS that failed: other versions, certificates that are not trusted, no "
           "TLS at all; the log says which.", (),
           _network(lambda network: network.failed_handshakes)),
    Metric("tls_certificate_expiry_seconds", _GAUGE,
           "Time until the first certificate of the TLS port expires; below 0: since then.", (),
           _certificate_left_s),
    Metric("gateway_sessions", _GAUGE, "Open connections at the gateway to ZooKeeper.", (),
           _one(lambda s: 0 if s.security is None else s.security.gateway.sessions)),
    Metric("gateway_refused", _COUNTER, "Requests that the gateway has refused.", (),
           _one(lambda s: 0 if s.security is None else s.security.gateway.refused)),
    # -- logs
    _partition("log_start_offset", "The oldest offset that is kept.",
               lambda log, ends: ends.log_start_offset),
    _partition("log_end_offset", "The next offset to be appended.",
               lambda log, ends: ends.log_end_offset),
    _partition("log_high_watermark", "The end of what consumers see.",
               lambda log, ends: ends.high_watermark),
    _partition("log_size_bytes", "Bytes of all segments.", lambda log, ends: ends.size_bytes),
    _partition("log_segments", "Segments, the active one included.",
               lambda log, ends: log.segment_count),
    _partition("log_offline", "1 when the partition takes no appends.",
               lambda log, ends: isinstance(log.offline, StorageError)),
    Metric("logs_held", _GAUGE,
           "Logs that keep all records: their topic's configuration has not come from ZooKeeper.",
           (), _one(lambda s: sum(log.deletion_paused for log in s.logs.logs()))),
    Metric("clock_refused_seconds", _GAUGE,
           "How far the clock is ahead of the time that is expected (below 0: late), when it is so "
           "far off that it is not believed; else 0.", (),
           _one(lambda s: _clock_refused_s(s.logs))),
    Metric("damaged_ranges", _GAUGE, "Ranges of records that are known to be damaged on disk.", (),
           _one(lambda s: sum(len(log.damaged) for log in s.logs.logs()))),
    Metric("damaged_records", _GAUGE, "Offsets in those ranges.", (),
           _one(lambda s: sum(r.count for log in s.logs.logs() for r in log.damaged))),
    Metric("log_flush_seconds", _HISTOGRAM, "What each flush (fdatasync) of a segment took.", (),
           _one(lambda s: s.logs.stats.flushes.read())),
    Metric("retention_deleted_segments", _COUNTER, "Segments that retention took out.", (),
           _one(lambda s: s.logs.stats.expired_segments.value)),
    Metric("retention_deleted_bytes", _COUNTER, "Their bytes.", (),
           _one(lambda s: s.logs.stats.expired_bytes.value)),
    Metric("compactions", _COUNTER, "Compactions of a log that were finished.", (),
           _one(lambda s: s.compaction.runs)),
    Metric("compaction_failures", _COUNTER, "Compactions that failed; they are tried again.", (),
           _one(lambda s: s.compaction.failures)),
    Metric("compaction_read_bytes", _COUNTER, "Bytes of the segments that were compacted.", (),
           _one(lambda s: s.compaction.bytes_before)),
    Metric("compaction_written_bytes", _COUNTER, "Bytes of the segments they became.", (),
           _one(lambda s: s.compaction.bytes_after)),
    # -- atomic writes
    Metric("staged_bytes", _GAUGE, "What atomic writes have staged and nobody can read yet.", (),
           _one(lambda s: sum(log.staging.totals.size_bytes for log in s.logs.logs()))),
    Metric("staged_shares", _GAUGE, "Partitions' parts of such writes.", (),
           _one(lambda s: sum(log.staging.totals.writes for log in s.logs.logs()))),
    Metric("staged_expired", _COUNTER,
           "Partitions' parts of writes that nobody committed in time, and that were dropped.", (),
           _one(lambda s: s.logs.stats.staged_expired.value)),
    Metric("writes_pending", _GAUGE,
           "Writes in the cluster that are committed and not known to be visible everywhere.", (),
           _one(lambda s: s.publisher.pending)),
    Metric("writes_lost", _COUNTER,
           "Partitions' parts of committed writes that are not on the disk any more.", (),
           _one(lambda s: s.publisher.lost.value)),
    # -- compaction and the disk
    Metric("log_dirty_ratio", _GAUGE, "The share of a compacted log that is not compacted yet.",
           ("topic", "partition"), _dirty_ratios, per_partition=True),
    Metric("disk_free_bytes", _GAUGE, "What the data directory's file system has left.", (),
           _disk(free=True)),
    Metric("disk_size_bytes", _GAUGE, "The size of that file system.", (), _disk(free=False)),
    # -- recovery
    Metric("recovery_logs", _GAUGE, "Logs that the last start found.", (),
           _one(lambda s: s.logs.recovery.logs_total)),
    Metric("recovery_logs_done", _GAUGE, "Those of them that are open.", (),
           _one(lambda s: s.logs.recovery.logs_done)),
    Metric("recovery_scanned_bytes", _GAUGE, "What had to be read of them.", (),
           _one(lambda s: s.logs.recovery.bytes_scanned)),
    # -- ZooKeeper
    Metric("zookeeper_session_state", _GAUGE, "1 for the state of the session, 0 for the others.",
           ("state",),
           lambda s: [((each.value,), s.session.state is each) for each in SessionState]),
    Metric("zookeeper_disconnects", _COUNTER, "How often the connection to ZooKeeper broke.", (),
           _one(lambda s: s.session_watch.disconnects)),
    Metric("zookeeper_expirations", _COUNTER, "How often the session was lost.", (),
           _one(lambda s: s.session_watch.expirations)),
    Metric("zookeeper_unreadable_nodes", _GAUGE,
           "Nodes that do not hold what logbus wrote there; /healthz names them.", (),
           _one(lambda s: len(s.session.unreadable.messages))),
)  # fmt: skip
