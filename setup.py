"""What a wheel holds: ``kernel_pipeline/`` and, as ``kernel_pipeline.kernels``, the folder ``kernels/``.

On PyPI ``kernels`` is another project's name. C++ and CUDA sources and the tables of ``results/tuned/`` come
along. An editable installation, which ``make setup`` makes, is the checkout as it lies.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

NAME = "kernel_pipeline"

KERNELS = f"{NAME}.kernels"

SOURCES = ["*.cu", "*.cpp", "*.cuh", "*.h"]


class BuildLibrary(build_py):
    """Takes ``kernels/`` as ``kernel_pipeline/kernels/``."""

    def finalize_options(self) -> None:
        """Choose the packages."""
        super().finalize_options()
        if not self.editable_mode:
            library = [f"{NAME}.{package}" for package in find_packages(NAME)]
            kernels = [f"{KERNELS}.{package}" for package in find_packages("kernels")]
            self.packages = [NAME, *library, KERNELS, *kernels]
            self.package_dir = {NAME: NAME, KERNELS: "kernels"}
            self.package_data = {
                "": SOURCES,
                NAME: ["py.typed"],
                KERNELS: [f"include/{pattern}" for pattern in SOURCES],
            }

    def run(self) -> None:
        """Build in an empty folder: what another build left there would come along."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            tuned = Path(self.build_lib, NAME, "tuned")
            tuned.mkdir()
            for table in Path("results", "tuned").glob("*.json"):
                shutil.copy(table, tuned)


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildLibrary})
