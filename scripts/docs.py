"""Writes what documents repeat of the code: tables of settings and metrics, commands, test links.

The sources are the configuration dataclasses, with the ``#:`` comment above each field, the table
of metrics, and the names of the tests. In a page, ``<!-- generated: NAME -->`` begins a generated
part and ``<!-- end -->`` ends it; conf/broker.toml is generated as a whole. A test compares the
files with what this would write.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import inspect
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from scripts.generated import filled, parts_called
from spark_logbus.audit import AuditConfig
from spark_logbus.broker import (
    BrokerConfig,
    CompactionConfig,
    GatewayConfig,
    LoggingConfig,
    MetricsConfig,
    MovesConfig,
    NetworkConfig,
    ReplicationConfig,
    SecurityConfig,
    TlsConfig,
)
from spark_logbus.broker.monitoring.metric_table import METRICS, MetricKind
from spark_logbus.cli.app import VERBS, loaded
from spark_logbus.client import ClientConfig, ConsumerConfig, ProducerConfig
from spark_logbus.client.metrics import METRICS as CLIENT_METRICS
from spark_logbus.log import LogConfig
from spark_logbus.log.config import TEXT_KEYS, TOPIC_KEYS
from spark_logbus.programs import run_program
from spark_logbus.protocol import APIS, Api, Need
from spark_logbus.protocol.messages.api import ApiDeclaration

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "conf" / "broker.toml"
WIDTH = 100

TABLES: dict[str, type[Any]] = {
    "broker": BrokerConfig,
    "network": NetworkConfig,
    "log": LogConfig,
    "compaction": CompactionConfig,
    "moves": MovesConfig,
    "replication": ReplicationConfig,
    "tls": TlsConfig,
    "security": SecurityConfig,
    "gateway": GatewayConfig,
    "metrics": MetricsConfig,
    "logging": LoggingConfig,
}
CLIENTS: dict[str, type[Any]] = {
    "client": ClientConfig,
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "audit": AuditConfig,
}
# For conf/broker.toml: a table's head where it is not its docstring's first sentence, and values
# of keys that are required or none by default.
HEADS = {"log": "Defaults of all topics; a topic can override each, under Kafka's name for it."}
REQUIRED = {"id": "1", "data_dir": '"data/broker-1"'}
EXAMPLES = {
    "advertised_host": '"broker-1.example"',
    "rack": '"a1"',
    "port": "9293",
    "retention_bytes": "107_374_182_400  # 100 GiB",
    "flush_records": "10_000",
    "flush_ms": "1_000",
    "certificate": '"broker-1.pem"',
    "key": '"broker-1.key"',
    "client_ca": '"ca.pem"',
    "audit_file": '"/var/log/logbus/audit.log"',
    "max_compaction_lag_ms": "86_400_000  # 1 day",
}
# The metric of Kafka's that comes closest.
KAFKA_METRICS = {
    "cluster_brokers": "ActiveBrokerCount",
    "partitions_led": "LeaderCount",
    "partitions_offline": "OfflineReplicaCount",
    "topic_bytes_in": "BytesInPerSec",
    "topic_records_in": "MessagesInPerSec",
    "topic_bytes_out": "BytesOutPerSec",
    "requests": "RequestsPerSec",
    "request_errors": "ErrorsPerSec",
    "request_seconds": "TotalTimeMs",
    "fetch_wait_seconds": "RemoteTimeMs",
    "connections": "connection-count",
    "connections_accepted": "connection-creation-total",
    "log_start_offset": "LogStartOffset",
    "log_end_offset": "LogEndOffset",
    "log_high_watermark": "HighWatermark",
    "log_size_bytes": "Size",
    "log_segments": "NumLogSegments",
    "log_dirty_ratio": "max-dirty-percent",
    "log_flush_seconds": "LogFlushRateAndTimeMs",
    "recovery_logs": "remainingLogsToRecover",
    "zookeeper_session_state": "SessionState",
    "zookeeper_disconnects": "ZooKeeperDisconnectsPerSec",
    "zookeeper_expirations": "ZooKeeperExpiresPerSec",
}
# Options of many verbs, by names and help, which docs/cli.md describes before the verbs.
DESCRIBED_ONCE = {
    ("--zookeeper`, `-z", "ZooKeeper's address and chroot."),
    ("--json`, `-J", "One JSON object a line."),
}
# Of requests whose rights their handlers find.
OTHER_RIGHTS = {
    Api.HANDSHAKE: "none",
    Api.METADATA: "none; it leaves out topics for which there is no `describe`",
    Api.DISCARD: "`write` topic T, and to have begun the write",
    Api.ISSUE_TOKEN: "none; a token is good for no more than its owner may do",
}
GENERATED = parts_called(r"[\w-]+")
# A test that a page names: [test_x], without an address of its own.
NAMED = re.compile(r"\[(test_\w+)\](?![(:])")
DEFINED = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)


class DocsError(Exception):
    """Raised when something is missing that a document is to show."""


class Setting(NamedTuple):
    name: str
    default: Any
    """``dataclasses.MISSING`` for a key that is required."""

    comment: str


# -- the sources --------------------------------------------------------------------------


def settings_of(kind: type[Any]) -> list[Setting]:
    """The fields of a configuration dataclass, except those that are tables of their own, or of
    topics only."""
    comments = comments_of(kind)
    settings = []
    for field in dataclasses.fields(kind):
        if field.metadata.get("of_topics_only"):
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(default) and type(default) in TABLES.values():
            continue
        settings.append(Setting(field.name, default, comments[field.name]))
    missing = [setting.name for setting in settings if not setting.comment]
    if missing:
        raise DocsError(f"{kind.__name__}: no comment (#:) above {', '.join(missing)}.")
    return settings


def comments_of(kind: type[Any]) -> dict[str, str]:
    """The ``#:`` lines above each field, joined."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines = source.splitlines()
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    comments = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#:"):
                    break
                above.append(line.strip().removeprefix("#:").strip())
            comments[node.target.id] = " ".join(reversed(above))
    return comments


def tests_by_name() -> dict[str, list[str]]:
    """The files, from the project's root, that define a test of that name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in dict.fromkeys(DEFINED.findall(path.read_text())):
            found[name].append(str(path.relative_to(ROOT)))
    return found


# -- values -------------------------------------------------------------------------------


def shown(name: str, value: Any) -> str:
    """A default as a page shows it."""
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return f"`{value.name.lower() if isinstance(value.value, int) else value.value}`"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return in_units(name, value) or (f"{value}" if name == "port" else f"{value:,}")
    return f"`{value}`"


def in_units(name: str, value: int) -> str | None:
    """A size or a duration in its largest whole unit; None for what is neither."""
    units: list[tuple[str, int]] = []
    if "_bytes" in name:
        units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
    elif name.endswith("_ms"):
        units = [("day", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)]
    for unit, size in units:
        if value >= size and value % size == 0:
            number = value // size
            return f"{number} {unit}{'s' if unit == 'day' and number > 1 else ''}"
    return f"{value:,} ms" if name.endswith("_ms") and value else None


def as_toml(name: str, value: Any) -> str:
    if value is dataclasses.MISSING:
        return REQUIRED[name]
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        number = f"{value}" if name == "port" else f"{value:_}"
        units = in_units(name, value)
        return f"{number}  # {units}" if units and value >= 1_000 else number
    return f'"{value}"' if isinstance(value, str) else str(value)


# -- what is written ----------------------------------------------------------------------


def sample() -> str:
    """conf/broker.toml."""
    lines = [
        "# Configuration of one broker:  logbus broker --config conf/broker.toml",
        "# Every key is shown with its default; those without one are commented out with an",
        "# example. A key that is not known is refused at the start. Written by scripts/docs.",
    ]
    for table, kind in TABLES.items():
        lines += ["", *_comment(HEADS.get(table) or _first_sentence(kind)), f"[{table}]"]
        for setting in settings_of(kind):
            required = "Required. " if setting.default is dataclasses.MISSING else ""
            lines += ["", *_comment(required + setting.comment.replace("``", ""))]
            if setting.default is None:
                lines.append(f"# {setting.name} = {EXAMPLES[setting.name]}")
            else:
                lines.append(f"{setting.name} = {as_toml(setting.name, setting.default)}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def _first_sentence(kind: type[Any]) -> str:
    return " ".join((kind.__doc__ or "").split()).split(". ")[0].rstrip(".") + "."


def settings_table(kind: type[Any]) -> str:
    rows = ["| key | default | |", "|---|---|---|"]
    for setting in settings_of(kind):
        default = shown(setting.name, setting.default)
        rows.append(f"| `{setting.name}` | {default} | {_cell(setting.comment)} |")
    return "\n".join(rows)


def log_table() -> str:
    keys = {names[0]: key for key, names in {**TOPIC_KEYS, **TEXT_KEYS}.items()}
    rows = ["| key | of a topic | default | |", "|---|---|---|---|"]
    for name, default, comment in settings_of(LogConfig):
        rows.append(f"| `{name}` | `{keys[name]}` | {shown(name, default)} | {_cell(comment)} |")
    return "\n".join(rows)


def metric_table() -> str:
    if unknown := KAFKA_METRICS.keys() - {metric.name for metric in METRICS}:
        raise DocsError(f"KAFKA_METRICS names metrics that there are none of: {sorted(unknown)}.")
    rows = ["| metric | labels | | Kafka |", "|---|---|---|---|"]
    for metric in METRICS:
        name = f"logbus_{metric.name}{'_total' if metric.kind is MetricKind.COUNTER else ''}"
        kind = "Histogram. " if metric.kind is MetricKind.HISTOGRAM else ""
        cells = (", ".join(metric.labels), kind + metric.help, KAFKA_METRICS.get(metric.name, ""))
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def client_metric_table() -> str:
    rows = ["| client | name | |", "|---|---|---|"]
    for kind, metrics in CLIENT_METRICS.items():
        rows += [f"| {kind} | `{name}` | {_cell(help)} |" for name, help in metrics.items()]
    return "\n".join(rows)


def command_tables(name: str) -> str:
    """A verb of the command line, or all of a group: what each takes and does, and the options."""
    command = loaded(name)
    inner = getattr(command, "commands", None)
    verbs = {f"{name} {each}": found for each, found in (inner or {}).items()}
    if inner is None or command.invoke_without_command:
        verbs = {name: command, **verbs}
    synopses = ["| command | |", "|---|---|"]
    users: dict[str, list[str]] = defaultdict(list)
    for words, verb in verbs.items():
        summary = " ".join(verb.help.split("\n\n")[0].split())
        synopses.append(f"| `{_synopsis(words, verb)}` | {_cell(summary)} |")
        for option in filter(None, map(_option, verb.params)):
            users[option].append(f"`{words.removeprefix(name).strip() or name}`")
    if len(verbs) == 1:
        options = ["| option | default | |", "|---|---|---|", *users]
    else:
        rows = [f"| {', '.join(named)} {option}" for option, named in users.items()]
        options = ["| command | option | default | |", "|---|---|---|---|", *rows]
    return "\n".join([*synopses, "", *options])


def _synopsis(words: str, verb: Any) -> str:
    needed = [param for param in verb.params if param.required or _is_argument(param)]
    return " ".join(["logbus", words, *(_usage(param) for param in needed)])


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _usage(param: Any) -> str:
    """An argument, or an option that is required, as the synopsis of a command shows it."""
    name = (param.metavar or param.name).strip("{}[].").upper()
    if not _is_argument(param):
        return f"{param.opts[0]} {name}"
    name += "..." * (param.nargs != 1)
    return name if param.required else f"[{name}]"


def _option(param: Any) -> str | None:
    """The row of an argument or option; None for those that are described once, for all verbs."""
    text = " ".join((param.help or "").split())
    if _is_argument(param):
        names = _usage(param).strip("[]")
    else:
        names = "`, `".join([*param.opts, *param.secondary_opts])
    if (names, text) in DESCRIBED_ONCE:
        return None
    default = "required" if param.required else _default(param.default)
    environment = f" From `{param.envvar}` if that is set." if param.envvar else ""
    return f"| `{names}` | {default} | {_cell(text)}{environment} |"


def _default(value: Any) -> str:
    is_none = value is None or value is False or value == "" or callable(value)
    return "" if is_none else f"`{value!s}`"


def _cell(comment: str) -> str:
    return comment.replace("``", "`").replace("|", "\\|")


def rights_table() -> str:
    """A table of what requests for the topic T, or by the writer W, need."""
    rows = ["| request | rights |", "|---|---|"]
    for api, declared in APIS.items():
        needs = _needs(declared)
        if needs is None:
            words = "to be a broker"
        else:
            words = ", ".join(
                f"`{operation.value}` {resource.value}" + ("" if name == "*" else f" {name}")
                for operation, resource, name in needs
            )
        rows.append(f"| `{api.name}` | {words or OTHER_RIGHTS[api]} |")
    return "\n".join(rows)


def _needs(declared: ApiDeclaration) -> list[Need] | None:
    if declared.needs is None:
        return None
    names = {field.name for field in msgspec.structs.fields(declared.request)}
    known = {
        "partitions": [SimpleNamespace(topic="T")],
        "writer": "W",
        "decision": SimpleNamespace(topics={"T": None}),
        "name": "T",
    }
    return list(declared.needs(SimpleNamespace(**{name: known.get(name) for name in names})))


def links(page: Path) -> Callable[[str], str]:
    """The addresses of the tests that ``page`` names."""

    def written(text: str) -> str:
        tests = tests_by_name()
        lines = []
        for name in sorted(set(NAMED.findall(text))):
            files = tests.get(name, [])
            if len(files) != 1:
                where = f"are several: {', '.join(files)}" if files else "is none"
                raise DocsError(f"{page.name} names the test {name}, of which there {where}.")
            lines.append(f"[{name}]: {'../' * len(page.relative_to(ROOT).parts[:-1])}{files[0]}")
        return "\n".join(lines)

    return written


def parts(page: Path) -> dict[str, Callable[[str], str]]:
    """Returns what writes each generated part of a page, given the page's other text."""
    tables: dict[str, Callable[[str], str]] = {
        f"{name}-settings": lambda _, kind=kind: settings_table(kind)  # type: ignore[misc]
        for name, kind in {**TABLES, **CLIENTS}.items()
    }
    return {
        **tables,
        "log-settings": lambda _: log_table(),
        "metrics": lambda _: metric_table(),
        "client-metrics": lambda _: client_metric_table(),
        "request-rights": lambda _: rights_table(),
        **{f"command-{name}": lambda _, name=name: command_tables(name) for name in VERBS},  # type: ignore[misc]
        "tests": links(page),
    }


def generated(page: Path) -> str:
    """The text of ``page`` with its generated parts as they are to be."""
    text = page.read_text()
    known = parts(page)
    outside = GENERATED.sub("", text)
    return filled(text, GENERATED, lambda name: known[name](outside))


def files() -> Iterator[tuple[Path, str]]:
    """All files with generated parts, and what they are to hold."""
    yield SAMPLE, sample()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if GENERATED.search(page.read_text()):
            yield page, generated(page)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    check: bool = parser.parse_args().check
    try:
        stale = [(path, text) for path, text in files() if path.read_text() != text]
    except DocsError as error:
        print(error)
        return 1
    for path, text in stale:
        print(f"{path.relative_to(ROOT)} {'is out of date' if check else 'was written'}.")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    run_program(main)
