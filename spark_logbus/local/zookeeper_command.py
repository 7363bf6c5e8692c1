"""The command that starts a ZooKeeper server from the jars in Spark's ``jars`` folder.

Only 8 of Spark's 280 jars go on the class path: with all of them the server needs half as
long again to start and half as much memory more, and loads logging plug-ins that have no
business there.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.java import java_executable

__all__ = ["LOG_FILE", "server_command"]

LOG_FILE = "zookeeper.log"
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "snappy-java",
)
# A small heap and few threads: the serial collector and the quick compiler start faster and
# take less memory. A server out of memory must end, not linger.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.configurationFile=log4j2.properties",
)
# Sessions last from two ticks (1 s) to a minute, as each client asks.
_ZOO_CFG = """\
tickTime=500
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=0
admin.enableServer=false
forceSync=yes
preAllocSize=4096
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
4lw.commands.whitelist=srvr,ruok,mntr,conf
"""
_LOG4J2 = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName=zookeeper.log
appender.file.filePattern=zookeeper.log.%i
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=3
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""


def server_command(directory: Path, *, host: str, port: int, heap_mb: int) -> list[str]:
    """Write the server's configuration files into ``directory``; return the command.

    The command must run in ``directory``. The data goes to ``data`` in it.
    """
    settings = _ZOO_CFG.format(data=_escape_property(str(directory / "data")), host=host, port=port)
    (directory / "zoo.cfg").write_text(settings, "ascii")
    (directory / "log4j2.properties").write_text(_LOG4J2, "ascii")
    java = [str(java_executable()), f"-Xmx{heap_mb}m", *_JVM_OPTIONS]
    return [*java, "-cp", _class_path(_jars_dir()), _MAIN_CLASS, "./zoo.cfg"]


def _jars_dir() -> Path:
    """Spark's ``jars`` folder, found without importing pyspark."""
    candidates = []
    if spark_home := os.environ.get("SPARK_HOME"):
        candidates.append(Path(spark_home) / "jars")
    spec = importlib.util.find_spec("pyspark")
    packages = (spec.submodule_search_locations or []) if spec else []
    candidates += [Path(package) / "jars" for package in packages]
    for jars in candidates:
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return jars
    raise EmbeddedServerError(
        "ZooKeeper's jar was not found in "
        f"{' or '.join(map(str, candidates)) or 'any Spark installation'}; "
        "install the Python package pyspark, or set SPARK_HOME to a Spark that has it."
    )


def _class_path(jars: Path) -> str:
    """The jars that the server needs; all of them if this Spark names them differently."""
    needed = [min(jars.glob(f"{name}-[0-9]*.jar"), default=None) for name in _JARS]
    found = [str(jar) for jar in needed if jar is not None]
    return os.pathsep.join(found) if len(found) == len(_JARS) else str(jars / "*")


def _escape_property(value: str) -> str:
    """``value`` as Java's properties files want it: ASCII, backslashes doubled."""
    escaped = value.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(escaped[i : i + 2]) for i in range(0, len(escaped), 2))
    return "".join(chr(unit) if 31 < unit < 127 else f"\\u{unit:04x}" for unit in units)
