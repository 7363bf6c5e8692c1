"""What ``pip install`` of a built wheel puts where."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "LICENSE", "README.md", "spark_logbus", "pyspark_logbus", "jobs", "conf")

_INSPECT = """
from importlib.metadata import distribution
logbus = distribution("logbus")
[command] = logbus.entry_points
print(command.group, command.name, command.value)
"""


def run(*command: str | Path) -> str:
    """The output of a command, which also stands in the failure if there is one."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds logbus, installed from a wheel, and nothing else."""
    base = tmp_path_factory.mktemp("packaging")
    source = base / "source"  # a copy: the build leaves its own files in the tree
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, source / part, ignore=ignored)
        elif (ROOT / part).exists():
            shutil.copy(ROOT / part, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", base / "dist", source)
    [wheel] = (base / "dist").glob("logbus-*.whl")
    venv.create(base / "venv", with_pip=False, symlinks=True)
    python = base / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    return base / "venv"


def package_files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
@pytest.mark.parametrize("package", ["spark_logbus", "pyspark_logbus"])
def test_all_files_of_the_packages_are_installed(installed: Path, package: str) -> None:
    [target] = installed.glob(f"lib/python*/site-packages/{package}")
    assert package_files(target) == package_files(ROOT / package)


@pytest.mark.slow
def test_nothing_else_is_importable(installed: Path) -> None:
    [site] = installed.glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names - {"__pycache__"} == {"spark_logbus", "pyspark_logbus"}


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "pattern"), [("jobs", "*.py"), ("conf", "*.toml")])
def test_jobs_and_sample_configuration_are_installed(
    installed: Path, folder: str, pattern: str
) -> None:
    target = installed / "share" / "logbus" / folder
    expected = {path.name for path in (ROOT / folder).glob(pattern)}
    assert {path.name for path in target.glob(pattern)} == expected


@pytest.mark.slow
def test_command_line_entry_point(installed: Path) -> None:
    assert (installed / "bin" / "logbus").exists()
    output = run(installed / "bin" / "python", "-c", _INSPECT)
    assert output == "console_scripts logbus spark_logbus.cli:main\n"
