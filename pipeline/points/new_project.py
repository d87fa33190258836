"""The files of a new project with one kernel, in which ``dvc repro`` runs at once.

They are the options (conf/), the stages (dvc.yaml), the kernels to measure (params.yaml), a kernel that
computes max(x, 0), a Makefile, a workflow for GitHub that verifies the kernels without a GPU, and a
requirements.txt with the version of this package.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from kernel_pipeline.errors import UserError

from .. import DATA, SCRIPT
from . import templates

PACKAGE = "kernel-pipeline"

KERNEL = "relu"
"""The kernel of a new project; its template computes max(x, 0)."""

AS_THEY_ARE = (".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore")

TEMPLATES = {
    "Makefile": "Makefile",
    "requirements.txt": "requirements.txt",
    ".github/workflows/kernels.yaml": "kernels.yaml",
}
"""The files that are made from templates, with the template's name in ``project_template/``."""

VERSION = "build/version"
"""The file with the installed version. A project's stages depend on it; in a checkout they depend on
sources."""

STAGES = f"""\
# The stages of `dvc repro`, which meet only in files. build/environment.json names the machine and
# {VERSION} the installed {PACKAGE}: on another machine or with another version each stage runs again,
# and measures what is old by then. Results of GPUs lie in results/, which git holds, and results of a CPU
# in local/, which git ignores.
"""


def write(folder: Path) -> int:
    """Write the project, and make its folder a git repository unless it lies in one. Return the number of
    files. Raises UserError for a folder with files that the project would replace."""
    files = files_in(folder)
    if there := next((path for path in files if path.exists()), None):
        raise UserError(f"{there} exists already, and this command overwrites no file: name another folder.")
    templates.write(files)
    if not _is_in_git(folder):
        subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return len(files)


def files_in(folder: Path) -> dict[Path, str]:
    """Return the files of a new project by their paths."""
    kernel = folder / "kernels" / KERNEL
    given = {"script": SCRIPT, "package": PACKAGE, "version": metadata.version(PACKAGE)}
    conf = sorted(str(path.relative_to(DATA)) for path in (DATA / "conf").rglob("*.yaml"))
    made = {
        **{name: (DATA / name).read_text() for name in AS_THEY_ARE},
        **{name: (DATA / name).read_text().replace("python -m pipeline.", f"{SCRIPT} ") for name in conf},
        "dvc.yaml": stages((DATA / "dvc.yaml").read_text()),
        "params.yaml": re.sub("(?m)^kernels: .*", f"kernels: {KERNEL}", (DATA / "params.yaml").read_text()),
        **{path: templates.rendered("project_template", name, **given) for path, name in TEMPLATES.items()},
    }
    of_kernel = templates.kernel(KERNEL, kernel, kernel / "kernel.yaml")
    return {folder / name: text for name, text in made.items()} | of_kernel


def stages(text: str) -> str:
    """Return a project's dvc.yaml, made from the repository's. The stages call the installed package, and
    depend on its version instead of its sources."""
    text = text[text.index("stages:\n") :]
    text = text.replace("pipeline/python -m pipeline.", f"{SCRIPT} ")
    text = re.sub(r"(?m)^      - (pipeline/|kernel_pipeline\b|docs/).*\n", "", text)
    text = text.replace("    deps:\n", f"    deps:\n      - {VERSION}\n")
    version = f"{SCRIPT} --version >{VERSION}"
    text = re.sub(
        r"    cmd: (.* environment .*)\n((?:.*\n)*?    outs:\n)",
        rf"    cmd:\n      - \1\n      - {version}\n\2      - {VERSION}: {{cache: false}}\n",
        text,
        count=1,
    )
    return STAGES + text


def _is_in_git(folder: Path) -> bool:
    """Whether a folder is in the working tree of a git repository. Raises UserError without git."""
    if shutil.which("git") is None:
        raise UserError(
            "git is not installed. Rows name the commit at which they were measured: install git."
        )
    done = subprocess.run(
        ["git", "rev-parse", "--is-inside-work-tree"], cwd=folder, capture_output=True, check=False
    )
    return done.returncode == 0
