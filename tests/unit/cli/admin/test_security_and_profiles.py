"""``logbus security``, ``logbus profiles``, and ``--profile`` before and after a verb."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_logbus.cli.app import app
from spark_logbus.cli.options import with_profile_first
from spark_logbus.errors import ConfigError
from spark_logbus.security.profiles import FILE_VARIABLE, NAME_VARIABLE
from spark_logbus.zookeeper import ConnectString, add_cluster_options

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "profiles.toml"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    monkeypatch.setenv(NAME_VARIABLE, "")  # put back, whatever a verb sets
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def failed(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code != 0
    return str(done.exception) if isinstance(done.exception, ConfigError) else done.output


def test_a_directory_is_made_once_and_the_profile_with_it(tmp_path: Path, profiles: Path) -> None:
    keys = tmp_path / "keys"
    done = run("security", "init", str(keys))
    assert done.exit_code == 0, done.output
    assert f"logbus up --security {keys}" in done.output
    password = (keys / "admin.password").read_text().strip()
    assert password not in done.output
    assert "was made before, and nothing was changed" in failed("security", "init", str(keys))
    listed = run("profiles", "list")
    assert "keys" in listed.output
    assert password not in listed.output
    profiles.unlink()
    assert run("security", "init", str(keys)).exit_code == 0, "it goes on where it was ended"
    assert "[keys]" in profiles.read_text()


def test_nothing_is_made_for_a_profile_that_is_there(tmp_path: Path, profiles: Path) -> None:
    profiles.parent.mkdir()
    profiles.write_text('[keys]\nzookeeper = "zk:2181"')  # and no end of the line
    profiles.chmod(0o600)
    assert "has a profile 'keys' already" in failed("security", "init", str(tmp_path / "keys"))
    assert not (tmp_path / "keys").exists()
    other = ["security", "init", str(tmp_path / "keys"), "--name", "other"]
    assert run(*other).exit_code == 0
    assert profiles.read_text().startswith('[keys]\nzookeeper = "zk:2181"\n\n[other]\n')


def test_profiles_of_more_users_are_added(tmp_path: Path, profiles: Path) -> None:
    keys = tmp_path / "keys"
    assert run("security", "init", str(keys)).exit_code == 0
    add = ["profiles", "add", "etl", "--like", "keys", "--user", "etl"]
    assert "one of them" in failed(*add)
    assert run(*add, "--password-env", "ETL_PASSWORD").exit_code == 0
    assert "was there already" in run(*add, "--password-env", "ETL_PASSWORD").output
    assert "has a profile 'etl' already" in failed(*add, "--password-env", "OTHER")
    added = profiles.read_text().split("[etl]")[1]
    assert f'tls_ca = "{keys / "ca.pem"}"' in added
    assert "gateway" in added
    assert "zookeeper" not in added
    assert "no profile 'none'" in failed("profiles", "add", "x", "--like", "none", "--user", "x")


def test_a_profile_like_one_that_encrypts_its_way_to_zookeeper_does_so_too(
    tmp_path: Path, profiles: Path
) -> None:
    profiles.parent.mkdir(parents=True, exist_ok=True)
    profiles.write_text(
        f'[prod]\nzookeeper = "zk:2281"\nzookeeper_tls_ca = "{tmp_path / "zookeeper.pem"}"\n'
    )
    profiles.chmod(0o600)
    assert run(
        "profiles", "add", "etl", "--like", "prod", "--user", "etl", "--password-env", "SECRET"
    ).exit_code == 0  # fmt: skip
    assert (
        f'zookeeper_tls_ca = "{tmp_path / "zookeeper.pem"}"'
        in profiles.read_text().split("[etl]")[1]
    )


def test_who_asks_about_rules_is_asked_back_where_the_answer_would_mislead() -> None:
    assert "is many" in failed("acls", "check", "user:anna", "read", "topic", "orders*")
    assert "is many" in failed("acls", "check", "user:anna", "read", "topic")
    assert "'*' is no principal" in failed("acls", "check", "*", "read", "topic", "orders")
    assert "'anna' is no principal" in failed("acls", "list", "anna")


def test_the_files_of_brokers_and_clients_are_made_apart(tmp_path: Path, profiles: Path) -> None:
    keys = str(tmp_path / "keys")
    assert run("security", "init", keys, "--host", "kafka1.example").exit_code == 0
    assert run("security", "issue", keys, "broker-2", "--host", "kafka2.example").exit_code == 0
    assert "certificate:etl" in run("security", "issue", keys, "etl").output
    assert "clients prove no host" in failed("security", "issue", keys, "x", "--host", "y")
    assert "something in" in failed("security", "issue", keys, "etl")
    assert "broker-2/broker.pem" in run("security", "init", keys, "--renew").output
    assert "is no directory of" in failed("security", "issue", str(tmp_path), "etl")


def test_passwords_on_the_command_line_are_refused_by_name(profiles: Path) -> None:
    for option in ("--password=hunter22", "--password", "--secret=hunter22"):
        said = failed("users", "add", "anna", option, "hunter22")
        assert "No such option" in said
        assert "hunter22" not in said


def test_the_profile_can_stand_anywhere_but_behind_two_dashes() -> None:
    assert with_profile_first(["topics", "list", "--profile", "p", "-J"]) == [
        "--profile", "p", "topics", "list", "-J",
    ]  # fmt: skip
    assert with_profile_first(["topics", "--profile=p"]) == ["--profile=p", "topics"]
    assert with_profile_first(["x", "--", "--profile", "p"]) == ["x", "--", "--profile", "p"]
    assert with_profile_first(["topics", "--profile"]) == ["topics", "--profile"]


def test_a_verb_takes_the_profile_before_the_environment(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles.parent.mkdir()
    profiles.write_text(f'[far]\nzookeeper = "{NOWHERE}/far"\n')
    profiles.chmod(0o600)
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", f"{NOWHERE}/near")
    both = failed("--profile", "far", "-z", NOWHERE, "users", "list")
    assert "No such option" in both
    both = failed("--profile", "far", "users", "list", "-z", NOWHERE)
    assert "both say where the cluster is" in both
    assert "no profile 'other'" in failed("users", "list", "--profile", "other")


def test_profiles_that_lead_to_profiles_are_refused(
    profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles.parent.mkdir()
    profiles.write_text('[a]\nzookeeper = "profile:a"\n[b]\nuser = "x"\npassword = "hunter22"\n[c]')
    profiles.chmod(0o600)
    with pytest.raises(ConfigError, match="another profile"):
        ConnectString.parse("profile:a")
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", "profile:c")
    with pytest.raises(ConfigError, match="does not say where ZooKeeper is"):
        ConnectString.parse("profile:c")
    listed = run("profiles", "list")
    assert "would be a secret itself" in listed.output
    assert "hunter22" not in listed.output


@pytest.mark.parametrize("option", ["--password", "--token", "--secret"])
def test_jobs_take_a_profile_and_no_secret(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_cluster_options(parser, default="zk:2181")
    assert parser.parse_args([]).zookeeper == "zk:2181"
    assert parser.parse_args(["--profile", "p"]).zookeeper == "profile:p"
    for arguments in ([option, "hunter22"], [f"{option}=hunter22"]):
        with pytest.raises(SystemExit):
            parser.parse_args(arguments)
        said = capsys.readouterr().err
        assert f"{option} would show a secret" in said
        assert "hunter22" not in said
    with pytest.raises(SystemExit):
        parser.parse_args(["--profile", "p", "--zookeeper", "zk"])
