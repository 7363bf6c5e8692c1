"""Starting and stopping child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_logbus.errors import EmbeddedServerError
from spark_logbus.local.processes import spawn, stop
from tests.helpers import process_is_gone, wait_until

GRACE_S = 10.0


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_output_directory_environment_and_exit_code(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text("before\n")
    program = "import os, sys; print(os.getcwd(), os.environ['A'], os.getpid()); sys.exit(3)"
    child = spawn(python(program), output=output, cwd=tmp_path, env={"A": "x"})
    assert child.wait(timeout=GRACE_S) == 3
    assert output.read_text() == f"before\n{tmp_path} x {child.pid}\n"


def test_child_has_a_session_of_its_own_and_empty_input(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    child = spawn(python(program), output=tmp_path / "output")
    assert child.wait(timeout=GRACE_S) == 0
    assert (tmp_path / "output").read_text() == "True ''\n"


def test_passed_descriptors_stay_open(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        program = f"import os; os.write({writer}, b'hello')"
        child = spawn(python(program), output=tmp_path / "output", pass_fds=[writer])
        assert child.wait(timeout=GRACE_S) == 0
        assert os.read(reader, 10) == b"hello"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("name", ["missing", "."])
def test_program_that_cannot_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="not an executable file"):
        spawn([tmp_path / name], output=tmp_path / "output")


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="Cannot start"):
        spawn(python("pass"), output=tmp_path)


def test_stop_asks_first(tmp_path: Path) -> None:
    child = spawn(["/bin/sleep", "600"], output=tmp_path / "output")
    assert stop(child, GRACE_S) == -signal.SIGTERM
    assert stop(child, GRACE_S) == -signal.SIGTERM, "once more does no harm"


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    output = tmp_path / "output"
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(600)"
    )
    child = spawn(python(program), output=output)
    wait_until(lambda: "deaf" in output.read_text(), message="the child to ignore signals")
    assert stop(child, 0.1) == -signal.SIGKILL


def test_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    children: list[subprocess.Popen[bytes]] = []
    starter = threading.Thread(
        target=lambda: children.append(
            spawn(python("import time; time.sleep(600)"), output=tmp_path / "output")
        )
    )
    starter.start()
    starter.join()
    with pytest.raises(subprocess.TimeoutExpired):
        children[0].wait(timeout=0.3)
    stop(children[0], GRACE_S)


_PARENT = """
import sys
from pathlib import Path
from spark_logbus.local.processes import spawn

print(spawn(["/bin/sleep", "600"], output=Path(sys.argv[1])).pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can do this")
def test_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path / "output")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not process_is_gone(pid)
        parent.kill()
        parent.wait()
        wait_until(lambda: process_is_gone(pid), message="the child to die")
