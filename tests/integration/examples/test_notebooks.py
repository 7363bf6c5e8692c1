"""The notebooks of the examples: what is kept of them, and that they run and show the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4 as untyped_v4

from scripts import notebooks as notebooks_program
from tests.servers.spark import PROJECT

v4: Any = untyped_v4
EXAMPLES = PROJECT / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
QUICKEST = EXAMPLES / "quickstart.ipynb"
MAX_BYTES = 400_000
OF_A_MACHINE = re.compile(r"/(?:home|root|tmp|work|Users|usr|opt)/|127\.0\.0\.1:\d|localhost:\d")

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def text_of(cell: dict[str, Any]) -> list[str]:
    """Texts that a cell shows, without its images."""
    return [
        "".join(output["text"] if "text" in output else output["data"].get("text/plain", ""))
        for output in cell["outputs"]
    ]


def images_of(cell: dict[str, Any]) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


@notebooks
def test_a_kept_notebook_is_a_valid_one(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))  # type: ignore[no-untyped-call]


def test_what_is_kept_of_outputs_is_valid() -> None:
    """Covers each kind of output that a kernel sends."""
    sent = [
        v4.new_output("stream", name="stdout", text="a\n"),
        v4.new_output("stream", name="stderr", text="WARNING: Using incubator modules: a\n"),
        v4.new_output("display_data", {"text/plain": "b"}, metadata={"width": 1}),
        v4.new_output("execute_result", {"text/plain": "c"}, execution_count=1),
        v4.new_output("error", ename="E", evalue="v", traceback=[]),
    ]
    kept = [each for each in map(notebooks_program._trimmed, sent) if each is not None]
    assert [each.output_type for each in kept] == [
        "stream", "display_data", "execute_result", "error",
    ]  # fmt: skip
    assert kept[1].metadata == {}
    nbformat.validate(v4.new_notebook(cells=[v4.new_code_cell("", outputs=kept)]))


@notebooks
def test_a_kept_notebook_has_run_and_tells_nothing_of_its_machine(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        for output in cell["outputs"]:
            assert output["output_type"] != "error"
            assert output.get("name") != "stderr", output
        for text in text_of(cell):
            assert OF_A_MACHINE.search(text) is None, text
    assert sum(map(images_of, cells)) > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, id=path.name, marks=pytest.mark.long if path == QUICKEST else pytest.mark.slow
        )
        for path in NOTEBOOKS
    ],
)
def test_a_notebook_runs_and_shows_what_is_kept(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROJECT / "scripts" / "notebooks.py", path, "--into", tmp_path],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    kept, shown = code_cells(path), code_cells(tmp_path / path.name)
    assert list(map(text_of, shown)) == list(map(text_of, kept))
    assert list(map(images_of, shown)) == list(map(images_of, kept))
