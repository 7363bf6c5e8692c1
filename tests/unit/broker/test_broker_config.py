from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.broker import (
    BrokerConfig,
    CompactionConfig,
    LoggingConfig,
    MetricsConfig,
    MovesConfig,
    NetworkConfig,
    load_broker_config,
)
from spark_logbus.errors import ConfigError
from spark_logbus.log import LogConfig

SAMPLE = Path(__file__).parents[3] / "conf" / "broker.toml"
GOOD = '[broker]\nid = 1\ndata_dir = "d"\n'


def load(tmp_path: Path, text: str) -> BrokerConfig:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return load_broker_config(path)


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD) == BrokerConfig(id=1, data_dir=Path("d"))


def test_the_sample_shows_every_key_with_its_default() -> None:
    config = load_broker_config(SAMPLE)
    assert config == BrokerConfig(id=1, data_dir=Path("data/broker-1"))
    text = SAMPLE.read_text()
    kinds = (
        BrokerConfig, NetworkConfig, LogConfig, CompactionConfig, MovesConfig, MetricsConfig,
        LoggingConfig,
    )  # fmt: skip
    for kind in kinds:
        for key in (field.name for field in dataclasses.fields(kind) if not field.metadata):
            assert f"{key} = " in text or f"[{key}]" in text, f"{key} is not in {SAMPLE}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks the required key 'id'"),
        ("[broker]\nid = 1", "lacks the required key 'data_dir'"),
        ("[broker]\ndata_dir = 'd'\nid = -1", "id must be 0 or more, got -1"),
        ("[broker]\ndata_dir = 'd'\nid = '1'", "id .* must be a whole number, got '1'"),
        (GOOD + "port = 65536", "port must be 0 to 65535, got 65536"),
        (GOOD + "host = ''", "host must not be empty"),
        (GOOD + "zookeeper_session_ms = 0", "zookeeper_session_ms must be 500 to 86400000, got 0"),
        (GOOD + "writer_retention_ms = 1", "writer_retention_ms must be at least 3600000, got 1"),
        (GOOD + "prot = 1", "Unknown key 'prot' .* did you mean 'port'"),
        (GOOD + "log = 5", "'log' is a table of its own"),
        (GOOD + "[moves]\nretention_ms = -1", "retention_ms must be 0 to 1125899906842624, got -1"),
        (GOOD + "[network]\nthreads = 0", "threads must be 1 to 1024, got 0"),
        (GOOD + "[network]\nthreads = 2000", "threads must be 1 to 1024, got 2000"),
        (GOOD + "[network]\nmax_frame_bytes = 4294967296", "max_frame_bytes must be"),
        (GOOD + "[network]\nmax_fetch_bytes = 4294967296", "max_fetch_bytes must be"),
        (GOOD + "[network]\nmax_handshake_bytes = 100000000", "max_handshake_bytes .* must not"),
        (GOOD + "[network]\nmax_frame_bytes = 16777216", "max_record_batch_bytes .* must be below"),
        (GOOD + "[network]\nmax_conections = 5", "did you mean 'max_connections'"),
        (GOOD + "[network]\nlocal_socket = 1", "local_socket .* must be bool"),
        (GOOD + "[log]\nsegment_bytes = 1", "segment_bytes .* is 1"),
        (GOOD + "[log]\ncleanup_policy = 'compac'", "did you mean compact"),
        (GOOD + "[compaction]\nmap_bytes = 0", "map_bytes must be 1 to"),
        (GOOD + "[compaction]\nmap_byte = 1", "did you mean 'map_bytes'"),
        (GOOD + "[logs]", "did you mean 'log'"),
        (GOOD + "[tls]\nonly = true", "only is true, but there is no certificate"),
        (GOOD + "[tls]\nkey = 'k'", "certificate and key are given together"),
        (GOOD + "[security]\nauthorize = true", "authorize is true and authenticate is false"),
        (GOOD + "[security]\nanonymous = true", "anonymous is true and authenticate is false"),
        (
            GOOD + "[security]\nauthenticate = true\nauthorize = true\nanonymous = true",
            "anonymous and authorize are both true",
        ),
        (GOOD + "[security]\nsuper_principals = ['anna']", "'anna' is no principal"),
        (GOOD + "[security]\nsuper_principals = [1]", "each of super_principals .* must be str"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, text)
    assert "broker.toml" in caught.value.message


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(NetworkConfig) if field.type == "int"]
)
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_every_number_of_the_network_has_bounds(field: str, value: int) -> None:
    values: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=field):
        NetworkConfig(**values)
