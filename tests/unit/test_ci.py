"""What ``.ci/run`` keeps of a machine, with programs in place of its steps that tell it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PROJECT: Final = Path(__file__).parents[2]
CHECK: Final = '#!/bin/sh\nenv | sed "s/^/has: /"\necho "python: $PYTHON"\n'
TESTS: Final = """#!/bin/sh
echo "arguments: $*"
echo "=== slowest 100 durations ==="
echo "9.00s call a_test"
echo "=== short test summary info ==="
echo "SKIPPED a_reason"
echo "=== 1 passed in 9.00s ==="
exit ${CODE:-0}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(PROJECT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "scripts").mkdir()
    for name, text in (("check", CHECK), ("test", TESTS), ("demo", "#!/bin/sh\nexit 0\n")):
        (tmp_path / "scripts" / name).write_text(text)
        (tmp_path / "scripts" / name).chmod(0o755)
    return tmp_path


def run(project: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": os.environ["PATH"], "HOME": str(project), "LANG": "C.UTF-8"}
    return subprocess.run(
        [project / ".ci" / "run"],
        env={**base, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_only_what_package_clients_need_is_kept(project: Path) -> None:
    kept = {
        "CI": "true",
        "JAVA_HOME": "/java",
        "PIP_CONFIG_FILE": "/etc/pip.conf",
        "https_proxy": "http://a b:1",
        "NO_PROXY": "localhost",
        "SSL_CERT_FILE": "/certificates\nof two lines",
        "REQUESTS_CA_BUNDLE": "",
    }
    dropped = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/elsewhere",
        "LOGBUS_ZOOKEEPER": "host:1",
        "SPARK_HOME": "/spark",
        "NO_PROXY_AT_ALL": "1",
        "MY_PIP_CERT": "1",
    }
    done = run(project, **kept, **dropped)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, value in kept.items():
        assert f"has: {name}={value.splitlines()[0] if value else ''}\n" in done.stdout
    for name in dropped:
        assert f"has: {name}=" not in done.stdout
    [told] = [line for line in done.stdout.splitlines() if line.startswith("==== environment")]
    assert set(dropped) <= set(told.split())


def stub_python(
    folder: Path, name: str, version: tuple[int, int, int], *, prefix: str = ""
) -> Path:
    """An interpreter that says it is of that version; in a virtual environment with ``prefix``."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"sys.version_info = {version}\n"
        "sys.executable = __file__\n"
        f"sys.prefix = sys.base_prefix + {prefix!r}\n"
        "exec(sys.argv[2])\n"
    )
    path.chmod(0o755)
    return path


def test_the_oldest_python_of_all_the_path_is_taken(project: Path, tmp_path: Path) -> None:
    stub_python(tmp_path / "a", "python3.12", (3, 12, 1))
    stub_python(tmp_path / "a", "python3.11", (3, 11, 10))
    stub_python(tmp_path / "b", "python3.11", (3, 11, 2), prefix="/environment")
    stub_python(tmp_path / "c", "python3", (3, 10, 0))
    oldest = stub_python(tmp_path / "d", "python3.11", (3, 11, 0))
    broken = tmp_path / "e" / "python3.11"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    path = ":".join(str(tmp_path / each) for each in "abcde")
    done = run(project, PATH=f"{path}:/nowhere:{os.environ['PATH']}", PYTHON="/ignored")
    assert f"python: {oldest}\n" in done.stdout
    assert f"==== Python 3.11.0 ({oldest})" in done.stdout


def test_its_end_tells_the_slowest_tests_and_what_failed(project: Path) -> None:
    (project / "scripts" / "test").write_text(TESTS.replace("${CODE:-0}", "3"))
    done = run(project)
    assert done.returncode == 1
    assert "arguments: --all --durations=100" in done.stdout
    end = done.stdout[done.stdout.index("==== times") :]
    assert "failed with code 3" in end
    assert re.search(r"^in all +\d+ s$", end, re.MULTILINE)
    assert "==== slowest tests\n9.00s call a_test\n" in end
    assert end.endswith("SKIPPED a_reason\n=== 1 passed in 9.00s ===\n")
