"""What ``pip install`` puts where, what it leaves behind, and that Spark finds it from anywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.servers.cluster import Logbus

ROOT = Path(__file__).parents[3]
PATH_FILE = "logbus_pyspark.pth"
LETTERS = "abcdefghijklmnopqrst"
PARTS = (
    "pyproject.toml", "LICENSE", "README.md", "spark_logbus", "avro_columns",
    "pyspark_logbus", "jobs", "conf",
    "packaging",
)  # fmt: skip

_READER = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.memory", "512m")
    .getOrCreate()
)
zookeeper, topic = sys.argv[1:]
frame = spark.read.format("logbus").option("zookeeper", zookeeper).option("subscribe", topic).load()
print([bytes(row.value)[:1].decode() for row in frame.select("value").collect()])
frame.select("offset").show(2)
frame.limit(2).collect()
spark.stop()
"""

_INSPECT = """
from importlib.metadata import distribution
logbus = distribution("logbus")
[command] = logbus.entry_points
print(command.group, command.name, command.value)
"""


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """The output of a command, which also stands in the failure if there is one."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        cwd=cwd, env=env,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}"
    return done.stdout


def without_pythonpath() -> dict[str, str]:
    """The environment without the path on which this run's Spark session finds the packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def source_tree(base: Path) -> Path:
    """A copy of what a package is built from, with what an older build left in it."""
    source = base / "source"
    source.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, source / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, source)
    stale = source / "build" / "lib" / "spark_logbus"
    stale.mkdir(parents=True)
    (stale / "gone_since.py").write_text("raise AssertionError\n")
    return source


def environment(base: Path) -> Path:
    """The Python of a fresh virtual environment, without pip and without packages."""
    venv.create(base / "venv", with_pip=False, symlinks=True)
    return base / "venv" / "bin" / "python"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds logbus, installed from a wheel, and nothing else."""
    base = tmp_path_factory.mktemp("packaging")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", base / "dist", source_tree(base))
    [wheel] = (base / "dist").glob("logbus-*.whl")
    python = environment(base)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    return base / "venv"


def dependencies(of: Distribution) -> dict[str, Distribution]:
    """Distributions of this environment that pip installs together with another one, by name."""
    found: dict[str, Distribution] = {}
    waiting = list(of.requires or [])
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in found:
            found[name] = distribution(name)
            waiting += found[name].requires or []
    return found


def lend_dependencies(environment: Path) -> Path:
    """The environment's folder of packages, which now has from this one what logbus depends on, and
    nothing that other programs and tests need."""
    [site] = environment.glob("lib/python*/site-packages")
    [logbus] = distributions(name="logbus", path=[str(site)])
    lent = environment / "dependencies"
    lent.mkdir(exist_ok=True)
    for each in dependencies(logbus).values():
        for name in {file.parts[0] for file in each.files or []} - {"..", "__pycache__"}:
            if not (lent / name).exists():
                (lent / name).symlink_to(Path(str(each.locate_file(name))))
    (site / "dependencies.pth").write_text(f"{lent}\n")
    return site


def imported_from(python: Path, cwd: Path) -> str:
    where = "import spark_logbus; print(spark_logbus.__file__)"
    return run(python, "-c", where, cwd=cwd, env=without_pythonpath())


def package_files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.long
@pytest.mark.parametrize("package", ["spark_logbus", "avro_columns", "pyspark_logbus"])
def test_all_files_of_the_packages_are_installed(installed: Path, package: str) -> None:
    [target] = installed.glob(f"lib/python*/site-packages/{package}")
    assert package_files(target) == package_files(ROOT / package)


@pytest.mark.long
def test_nothing_else_is_importable(installed: Path) -> None:
    [site] = installed.glob("lib/python*/site-packages")
    names = {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")}
    assert names - {"__pycache__"} == {
        "spark_logbus", "avro_columns", "pyspark_logbus", PATH_FILE,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("folder", ["jobs", "conf"])
def test_jobs_and_sample_configuration_are_installed(installed: Path, folder: str) -> None:
    target = installed / "share" / "logbus" / folder
    assert package_files(target) == package_files(ROOT / folder) != set()


@pytest.mark.long
def test_command_line_entry_point(installed: Path) -> None:
    assert (installed / "bin" / "logbus").exists()
    output = run(installed / "bin" / "python", "-c", _INSPECT, env=without_pythonpath())
    assert output == "console_scripts logbus spark_logbus.cli:main\n"


def all_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize(
    "editable",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["plain", "editable"],
)
def test_an_installation_leaves_nothing_in_the_source_tree(tmp_path: Path, editable: bool) -> None:
    source = source_tree(tmp_path)
    before = all_files(source)
    what = ("-e", source) if editable else (source,)
    install = (sys.executable, "-m", "pip", "--python", environment(tmp_path), "install")
    run(*install, "--no-deps", *what)
    assert all_files(source) == before


# -- where Spark finds it -----------------------------------------------------------------


def run_reader(
    python: Path | str, logbus: Logbus, base: Path, *, driver: Path | str | None = None
) -> str:
    """Returns what a program prints that reads a topic of many megabytes, wholly and in part: the
    program stands in one folder, and is started in another. ``driver`` is the program that Spark
    takes for the driver's Python."""
    topic = logbus.topic(partitions=1)
    logbus.produce(topic, [letter * 500_000 for letter in LETTERS])
    programs, elsewhere = base / "programs", base / "elsewhere"
    programs.mkdir()
    elsewhere.mkdir()
    program = programs / "reader.py"
    program.write_text(_READER)
    env = without_pythonpath() | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(driver or python),
    }
    return run(python, program, logbus.zookeeper, topic, cwd=elsewhere, env=env)


@pytest.mark.slow
def test_a_program_in_another_folder_reads_a_topic(logbus: Logbus, tmp_path: Path) -> None:
    told = run_reader(sys.executable, logbus, tmp_path)
    assert str(list(LETTERS)) in told
    assert "Traceback" not in told, told


@pytest.mark.slow
def test_a_topic_is_read_where_jupyter_is_the_drivers_python(
    logbus: Logbus, tmp_path: Path
) -> None:
    """Sets the driver's Python as a notebook's environment does, where ``pyspark`` starts one."""
    jupyter = Path(sys.executable).with_name("jupyter")
    told = run_reader(sys.executable, logbus, tmp_path, driver=jupyter)
    assert str(list(LETTERS)) in told


@pytest.mark.long
@pytest.mark.parametrize(
    "way", ["wheel", *(pytest.param(way, marks=pytest.mark.slow) for way in ("source", "editable"))]
)
def test_any_installation_reads_a_topic_from_any_folder(
    way: str, logbus: Logbus, tmp_path: Path
) -> None:
    source, python = source_tree(tmp_path), environment(tmp_path)
    what: tuple[str | Path, ...] = (source,)
    if way == "wheel":
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", tmp_path / "dist", source)
        what = tuple((tmp_path / "dist").glob("logbus-*.whl"))
    elif way == "editable":
        what = ("-e", source)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", *what)
    site = lend_dependencies(tmp_path / "venv")
    assert (site / PATH_FILE).is_file()
    assert imported_from(python, tmp_path).startswith(str(source if way == "editable" else site))
    assert str(list(LETTERS)) in run_reader(python, logbus, tmp_path)


# -- the jobs that come with it -----------------------------------------------------------


@pytest.fixture(scope="module")
def jobs(installed: Path) -> Path:
    """The folder of the jobs as they were installed, in an environment where they can run."""
    site = lend_dependencies(installed)
    folder = installed / "share" / "logbus" / "jobs"
    assert imported_from(installed / "bin" / "python", folder).startswith(str(site))
    return folder


@pytest.mark.long
def test_each_installed_job_explains_itself(installed: Path, jobs: Path, tmp_path: Path) -> None:
    programs = sorted(jobs.glob("*.py"))
    assert programs != []
    for program in programs:
        told = run(
            installed / "bin" / "python", program, "--help",
            cwd=tmp_path, env=without_pythonpath(),
        )  # fmt: skip
        assert told.lower().lstrip().startswith("usage: ")


@pytest.mark.slow
def test_an_installed_job_loads_a_topic(
    installed: Path, jobs: Path, logbus: Logbus, tmp_path: Path
) -> None:
    topic = logbus.topic(partitions=2)
    for partition in (0, 1):
        logbus.produce(topic, LETTERS, partition=partition)
    python = str(installed / "bin" / "python")
    env = without_pythonpath() | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}

    def submit(job: str, *more: str) -> str:
        return run(
            Path(sys.executable).with_name("spark-submit"), "--master", "local[2]",
            "--driver-memory", "512m", "--conf", "spark.ui.enabled=false",
            jobs / job, "--topic", topic, "--zookeeper", logbus.zookeeper,
            "--warehouse", tmp_path / "warehouse", *more, cwd=tmp_path, env=env,
        )  # fmt: skip

    assert f"{2 * len(LETTERS)} records" in submit("load_warehouse.py")
    again = submit("reprocess.py", "--from", "earliest")
    assert re.search(r"\d files were replaced by \d", again), again
    values = pq.read_table(tmp_path / "warehouse" / topic, columns=["value"]).column("value")
    assert sorted(values.to_pylist()) == sorted(2 * [letter.encode() for letter in LETTERS])


@pytest.mark.long
def test_the_installed_clickstream_names_the_installed_schemas(
    installed: Path, jobs: Path, logbus: Logbus, tmp_path: Path
) -> None:
    """Follows the remedy of an error with what was installed."""
    done = subprocess.run(
        [installed / "bin" / "python", jobs / "clickstream.py", "--zookeeper", logbus.zookeeper,
         "--checkpoint", tmp_path, "--parquet", tmp_path, "--views", "no-views"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=without_pythonpath(),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    [schema] = re.findall(r"--value-schema (\S+\.avsc)", done.stdout)
    assert Path(schema).is_file()
    assert Path(schema).is_relative_to(installed)
