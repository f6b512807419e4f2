"""Runs the notebooks, each in a kernel of its own, and keeps their outputs in them, as `make notebooks` does.

python notebooks/run.py                              # all of them
python notebooks/run.py notebooks/first-minute.ipynb
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS = 300  # for a cell, and for the kernel to start, on a busy machine


def executed(file):
    """The notebook with new outputs. A cell that raises ends it, with what the cell said."""
    notebook = nbformat.read(file, as_version=4)
    NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(Path(file).parent)}},
    ).execute()
    for cell in notebook.cells:  # warnings name the folders of this machine
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def main(files):
    for file in files or sorted(Path(__file__).parent.glob("*.ipynb")):
        print(f"{file} …", flush=True)
        nbformat.write(executed(file), file)


if __name__ == "__main__":
    main(sys.argv[1:])
