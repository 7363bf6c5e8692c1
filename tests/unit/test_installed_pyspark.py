"""When Python processes of Spark have PySpark from where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

from spark_logbus.installed_pyspark import VARIABLE, without_archives

PROJECT: Final = Path(__file__).parents[2]
PATH_FILE: Final = PROJECT / "packaging" / "logbus_pyspark.pth"


class Installation:
    """A folder of packages with a PySpark, and what Spark puts on the path before it."""

    def __init__(self, folder: Path) -> None:
        self.packages = folder
        spark = folder / "pyspark"
        lib = spark / "python" / "lib"
        lib.mkdir(parents=True)
        (spark / "jars").mkdir()
        (spark / "__init__.py").touch()
        (folder / "py4j-0.10.9.dist-info").mkdir()
        self.zip, self.py4j = lib / "pyspark.zip", lib / "py4j-0.10.9-src.zip"
        self.jar = spark / "jars" / "spark-core.jar"
        for archive in (self.zip, self.py4j, self.jar):
            with zipfile.ZipFile(archive, "w") as written:
                written.writestr("pyspark/__init__.py", "")
        self.archives = [str(self.zip), str(self.py4j), str(self.jar)]


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "site-packages")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A folder of the user's, with a module."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "helpers.py").touch()
    return str(tmp_path / "own")


def test_the_archives_of_the_installed_one_are_left_out(installed: Installation, own: str) -> None:
    packages = str(installed.packages)
    rest = [own, "/nowhere/python311.zip", packages]
    assert without_archives([*installed.archives, *rest], {}) == rest
    assert without_archives([own, *installed.archives, packages], {}) == [own, packages]
    # Spark names them twice for a source that it finds by itself.
    assert without_archives([*installed.archives, *installed.archives, *rest], {}) == rest
    assert without_archives([str(installed.zip), packages], {}) == [packages]
    # Of the shell ``pyspark``, which has a folder ``pyspark`` without a module.
    shell = installed.packages / "pyspark" / "python"
    (shell / "pyspark").mkdir()
    assert without_archives([*installed.archives, str(shell), packages], {}) == [
        str(shell), packages,
    ]  # fmt: skip


def test_links_lead_to_the_installed_one(installed: Installation, tmp_path: Path) -> None:
    (tmp_path / "lib64").symlink_to(installed.packages)
    linked = str(tmp_path / "lib64")
    assert without_archives([*installed.archives, linked], {}) == [linked]


@pytest.mark.parametrize("value", ["0", "no", "False"])
def test_a_variable_turns_it_off(installed: Installation, value: str) -> None:
    path = [*installed.archives, str(installed.packages)]
    assert without_archives(path, {VARIABLE: value}) == path
    assert without_archives(path, {VARIABLE: "1"}) == path[-1:]


def _another_home(installed: Installation, tmp_path: Path) -> list[str]:
    """``spark-submit`` of a Spark of its own, or PySpark of another virtual environment."""
    other = Installation(tmp_path / "other")
    return [*other.archives, str(installed.packages)]


def _a_container(installed: Installation, tmp_path: Path) -> list[str]:
    """YARN copies the zip file into the container's folder."""
    copied = tmp_path / "container" / "pyspark.zip"
    copied.parent.mkdir()
    copied.write_bytes(installed.zip.read_bytes())
    return [str(copied), str(installed.packages)]


def _not_on_the_path(installed: Installation, tmp_path: Path) -> list[str]:
    return [*installed.archives, str(tmp_path)]


def _half_an_installation(installed: Installation, tmp_path: Path) -> list[str]:
    (installed.packages / "pyspark" / "__init__.py").unlink()
    return [*installed.archives, str(installed.packages)]


def _another_py4j(installed: Installation, tmp_path: Path) -> list[str]:
    (installed.packages / "py4j-0.10.9.dist-info").rename(installed.packages / "py4j-1.dist-info")
    return [*installed.archives, str(installed.packages)]


def _a_zip_of_the_users(installed: Installation, tmp_path: Path) -> list[str]:
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as written:
        written.writestr("pyspark/__init__.py", "")
    return [*installed.archives, str(tmp_path / "own.zip"), str(installed.packages)]


def _another_between(installed: Installation, tmp_path: Path) -> list[str]:
    other = Installation(tmp_path / "other")
    return [*installed.archives, str(other.packages), str(installed.packages)]


def _another_py4j_between(installed: Installation, tmp_path: Path) -> list[str]:
    (tmp_path / "own" / "py4j").mkdir(parents=True)
    (tmp_path / "own" / "py4j" / "__init__.py").touch()
    return [*installed.archives, str(tmp_path / "own"), str(installed.packages)]


def _a_shipped_one_first(installed: Installation, tmp_path: Path) -> list[str]:
    with zipfile.ZipFile(tmp_path / "pyspark.zip", "w") as written:
        written.writestr("pyspark/__init__.py", "")
    return [str(tmp_path / "pyspark.zip"), *installed.archives, str(installed.packages)]


def _none(installed: Installation, tmp_path: Path) -> list[str]:
    return ["", "relative", str(installed.packages)]


@pytest.mark.parametrize(
    "path_of",
    [
        _another_home, _a_container, _not_on_the_path, _half_an_installation, _another_py4j,
        _a_zip_of_the_users, _another_between, _another_py4j_between, _a_shipped_one_first, _none,
    ],
    ids=lambda path_of: path_of.__name__.strip("_"),
)  # fmt: skip
def test_whatever_is_different_stays_as_spark_made_it(
    installed: Installation, tmp_path: Path, path_of: Callable[[Installation, Path], list[str]]
) -> None:
    path = path_of(installed, tmp_path)
    assert without_archives(list(path), {}) == path


def test_what_is_no_text_on_the_path_is_passed_over(installed: Installation) -> None:
    odd: list[Any] = [None, Path("/own"), b"/bytes"]
    packages = str(installed.packages)
    assert without_archives([*odd, *installed.archives, *odd, packages], {}) == [
        *odd, *odd, packages,
    ]  # fmt: skip


# -- with the PySpark that is here --------------------------------------------------------

_SHOW: Final = """
import site, sys
site.addsitedir(sys.argv[1])
import pyspark, py4j
print(pyspark.__file__)
print(py4j.__file__)
print("spark_logbus" in sys.modules)
"""


def shown(tmp_path: Path, **environment: str) -> tuple[list[str], str]:
    """Returns what a Python with Spark's path and the path file imports, and says of errors."""
    tmp_path.joinpath(PATH_FILE.name).write_text(PATH_FILE.read_text())
    base = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", _SHOW, tmp_path],
        env={**base, "PYTHONPATH": "", **environment},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def sparks_path() -> str:
    home = Path(pyspark.__path__[0])
    [py4j] = (home / "python" / "lib").glob("py4j-*-src.zip")
    [core] = (home / "jars").glob("spark-core_*.jar")
    return os.pathsep.join(map(str, (home / "python" / "lib" / "pyspark.zip", py4j, core)))


def test_a_python_of_sparks_imports_the_installed_one(tmp_path: Path) -> None:
    (spark, py4j, imported), errors = shown(tmp_path, PYTHONPATH=sparks_path())
    assert errors == ""
    assert imported == "False"  # so that one which Spark adds later can come first
    assert spark == pyspark.__file__
    assert ".zip" not in py4j
    (spark, py4j, _), _ = shown(tmp_path, PYTHONPATH=sparks_path(), **{VARIABLE: "0"})
    assert "pyspark.zip" in spark
    assert "src.zip" in py4j


def test_any_other_python_imports_nothing_for_it(tmp_path: Path) -> None:
    (spark, _, imported), errors = shown(tmp_path)
    assert errors == ""
    assert spark == pyspark.__file__
    assert imported == "False"


@pytest.mark.parametrize(
    "module",
    ["", "raise SystemExit(3)", "raise ImportError", "not Python", None],
    ids=["an older release", "ends", "raises", "does not parse", "uninstalled"],
)
def test_any_python_starts_whatever_spark_logbus_there_is(
    tmp_path: Path, module: str | None
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    if module is None:
        (other / "spark_logbus").touch()
    else:
        (other / "spark_logbus").mkdir()
        (other / "spark_logbus" / "__init__.py").write_text(module)
    path = os.pathsep.join([str(other), sparks_path()])
    (spark, *_), errors = shown(tmp_path, PYTHONPATH=path)
    assert errors == ""
    assert "pyspark" in spark


def test_any_python_starts_with_what_is_no_text_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "before.pth").write_text("import sys; sys.path[:0] = [None, b'pyspark.zip']\n")
    (spark, *_), errors = shown(tmp_path, PYTHONPATH=sparks_path())
    assert errors == ""
    assert spark == pyspark.__file__
