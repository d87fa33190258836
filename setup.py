"""What ``pip install .`` builds: the kernels under a name of their own, ``kernel_pipeline``.

On PyPI ``kernels`` is another project's name, and the pipeline needs a checkout. So a wheel holds
``kernels/`` with its imports renamed, its C++ and CUDA sources, and the tables of ``results/tuned/``. An
editable installation, which ``make setup`` makes, is the checkout as it lies.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

NAME = "kernel_pipeline"

SOURCES = ["*.cu", "*.cpp", "*.cuh", "*.h"]

RENAMES = (
    (re.compile(r"^(\s*from )kernels(?=[.\s])", re.MULTILINE), rf"\1{NAME}"),
    (re.compile(r"^(\s*import )kernels$", re.MULTILINE), rf"\1{NAME} as kernels"),
    (re.compile(r"\bkernels\.ops\b"), f"{NAME}.ops"),  # in sentences
)


class BuildKernels(build_py):
    """Takes ``kernels/`` as ``kernel_pipeline/``."""

    def finalize_options(self) -> None:
        """Choose the packages."""
        super().finalize_options()
        if not self.editable_mode:
            self.packages = [NAME, *(f"{NAME}.{package}" for package in find_packages("kernels"))]
            self.package_dir = {NAME: "kernels"}
            self.package_data = {"": SOURCES, NAME: [f"include/{pattern}" for pattern in SOURCES]}

    def run(self) -> None:
        """Build in an empty folder: what another build left there would come along."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            made = Path(self.build_lib, NAME)
            shutil.copy(Path(NAME, "__main__.py"), made)
            (made / "tuned").mkdir()
            for table in Path("results", "tuned").glob("*.json"):
                shutil.copy(table, made / "tuned")

    def build_module(self, module: object, module_file: object, package: object) -> object:
        """Copy a module, and rename what it imports."""
        made, copied = super().build_module(module, module_file, package)
        Path(made).write_text(renamed(Path(made).read_text()))
        return made, copied


def renamed(text: str) -> str:
    """A module's text as the package ``kernel_pipeline`` has it."""
    for pattern, name in RENAMES:
        text = pattern.sub(name, text)
    return text


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildKernels})
