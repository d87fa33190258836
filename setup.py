"""Build the wheel: ``kernel_pipeline/`` and, inside of it, the folders ``kernels/`` and ``pipeline/``.

The two folders are inside because ``kernels`` is another project's name on PyPI. The wheel also holds the C++
and CUDA sources, the tables of ``results/tuned/``, and the files from which ``kernel-pipeline new`` makes a
project. An editable installation, as by ``make setup``, uses the checkout's own folders.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NAME = "kernel_pipeline"

INSIDE = ("kernels", "pipeline")
"""The folders that become packages of ``kernel_pipeline``."""

PROJECT = (".dvc/.gitignore", ".dvc/config", ".dvcignore", ".gitignore", "dvc.yaml", "params.yaml")
"""The files outside of ``conf/`` from which ``kernel-pipeline new project=`` makes a project."""

SOURCES = ["*.cu", "*.cpp", "*.cuh", "*.h"]


class BuildLibrary(build_py):
    """Builds ``kernels/`` as ``kernel_pipeline/kernels/``, and ``pipeline/`` as
    ``kernel_pipeline/pipeline/``."""

    def finalize_options(self) -> None:
        """Choose the packages."""
        super().finalize_options()
        if not self.editable_mode:
            self.package_dir = {NAME: NAME, **{f"{NAME}.{folder}": folder for folder in INSIDE}}
            self.packages = [
                name
                for package, folder in self.package_dir.items()
                for name in (package, *(f"{package}.{found}" for found in find_packages(folder)))
            ]
            self.package_data = {
                "": [*SOURCES, "*.yaml"],
                NAME: ["py.typed"],
                f"{NAME}.kernels": [f"include/{pattern}" for pattern in SOURCES],
                f"{NAME}.pipeline": ["*_template/*.j2"],
                f"{NAME}.pipeline.reporting": ["templates/*"],
            }

    def run(self) -> None:
        """Build in an empty folder, because files of an earlier build would get into the wheel."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            tuned = Path(self.build_lib, NAME, "tuned")
            tuned.mkdir()
            for table in Path("results", "tuned").glob("*.json"):
                shutil.copy(table, tuned)
            project = Path(self.build_lib, NAME, "pipeline", "project")
            shutil.copytree("conf", project / "conf")
            for file in PROJECT:
                (project / file).parent.mkdir(exist_ok=True)
                shutil.copy(file, project / file)


class SameSdist(sdist):
    """Writes an sdist with the same bytes for the same files if SOURCE_DATE_EPOCH is set. Wheels have this
    property already."""

    def make_archive(self, base_name: str, format: str, *arguments: str, **options: str | None) -> str:
        """Write the folder of the distribution as ``.tar.gz``. Returns the archive's path."""
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None:
            return str(super().make_archive(base_name, format, *arguments, **options))
        folder = Path(str(options["base_dir"]))
        archive = Path(f"{base_name}.tar.gz")
        archive.parent.mkdir(parents=True, exist_ok=True)

        def same(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = int(epoch), 0, 0, "", ""
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        with (
            archive.open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            tar.add(folder, filter=same)  # in the order of names
        return str(archive)


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildLibrary, "sdist": SameSdist})
