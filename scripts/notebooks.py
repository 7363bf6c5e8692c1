"""Runs the notebooks of examples/, each in a kernel of this environment, and keeps their outputs.

What would differ from run to run without telling anything is left out: times of execution, versions
of the kernel, and the line about the vector module with which Java greets. So a notebook changes
only when what it shows does.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from spark_logbus.programs import run_program

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"

_CELL_S = 300
_GREETING = "WARNING: Using incubator modules"


def run(path: Path) -> Any:
    """The notebook with the outputs of a run in its own folder. Raises CellExecutionError."""
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        notebook,
        timeout=_CELL_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_trimmed, cell.outputs) if output is not None]
    return notebook


def _trimmed(output: Any) -> Any | None:
    """An output as it is kept; None for one of which nothing is left."""
    if "metadata" in output:  # not of streams, where it would be invalid
        output.metadata = {}
    if output.output_type != "stream" or output.name != "stderr":
        return output
    lines = [line for line in output.text.splitlines(True) if not line.startswith(_GREETING)]
    output.text = "".join(lines)
    return output if output.text else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/notebooks", description=__doc__)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of examples/")
    parser.add_argument("--into", type=Path, help="a folder for the results; default: in place")
    options = parser.parse_args()
    for path in options.notebooks or sorted(FOLDER.glob("*.ipynb")):
        print(f"Running {path.name}.", flush=True)
        try:
            notebook = run(path.absolute())
        except CellExecutionError as error:
            print(f"{path.name} failed: {error}")
            return 1
        nbformat.validate(notebook)
        target = (options.into or path.parent) / path.name
        nbformat.write(notebook, target)  # type: ignore[no-untyped-call]
    return 0


if __name__ == "__main__":
    run_program(main)
