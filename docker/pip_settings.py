"""Pass the caller's pip settings to an image build.

``python3 docker/pip_settings.py FOLDER`` prints flags for docker, podman or buildah, one per line. It writes
the files that the flags name to FOLDER: a pip.conf, and hard links or copies of the folders from which pip
takes packages. The Dockerfiles mount these files, so no layer and no history of the image contains them.

The build uses only the settings that say where packages come from and how to reach them. Others are left out:
a lock names each package by its hash, and files of a constraint or a requirement are not in the image.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote, urlsplit

CERTIFICATES = {"cert": "/etc/pip-cert.pem", "client-cert": "/etc/pip-client-cert.pem"}
"""The settings that name a file, and the path at which the Dockerfiles mount it."""

PLACES = ("index-url", "extra-index-url", "find-links")
"""The settings whose words are addresses or folders."""

TAKEN = (*PLACES, *CERTIFICATES, "no-index", "trusted-host", "proxy", "timeout")
OTHER_NAMES = {"pypi-url": "index-url", "default-timeout": "timeout"}

FOLDERS = "/pip-folders"
"""The path at which the Dockerfiles mount the folders. Below it each folder has its path on this machine."""


def settings() -> dict[str, str]:
    """Return the settings for ``pip install`` from pip's files and environment variables."""
    # With `quiet` pip would list nothing.
    loud = os.environ | {"PIP_QUIET": "0", "PIP_VERBOSE": "0"}
    pip = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(pip, env=loud, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        fail(f"pip can't read its own settings: {reason}")
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][OTHER_NAMES.get(key, key)] = str(ast.literal_eval(value))
    merged = found["global"] | found["install"] | found[":env:"]
    return {key: value for key, value in merged.items() if key not in {"config-file", "quiet", "verbose"}}


def mounted(word: str, staging: Path) -> str:
    """Return a word of a setting in ``PLACES`` as the image needs it. A folder of this machine is copied to
    ``staging``, and its word becomes the path in the image."""
    address = urlsplit(word)
    if address.scheme not in {"", "file"}:
        return word
    path = Path(unquote(address.path) if address.scheme else word).expanduser().absolute()
    if not path.exists():
        note(f"pip's settings name {path}, which is not there")
        return word
    # The pages of an index in a folder link to files beside that folder, so take the parent.
    whole = path.parent if address.scheme or path.is_file() else path
    if whole == whole.parent:
        whole = path
    copy(whole, staging / whole.relative_to("/"))
    inside = Path(f"{FOLDERS}{path}")
    return inside.as_uri() if address.scheme else str(inside)


def copy(folder: Path, target: Path) -> None:
    """Hard-link or copy a folder's files. Existing files in the target stay."""

    def link(source: str, place: str) -> None:
        if Path(place).exists():
            return
        try:
            os.link(Path(source).resolve(), place)
        except OSError:
            shutil.copy2(source, place)

    shutil.copytree(folder, target, copy_function=link, dirs_exist_ok=True, ignore_dangling_symlinks=True)


def flags(folder: Path) -> list[str]:
    """Return the flags for a build, and write the files that they name to the folder."""
    here = settings()
    inside, found = {}, []
    staging = folder / "folders"
    for key in (key for key in TAKEN if here.get(key)):
        inside[key] = here[key]
        if key in PLACES:
            inside[key] = " ".join(mounted(word, staging) for word in here[key].split())
        elif key in CERTIFICATES:
            path = Path(here[key]).expanduser().absolute()
            if not path.is_file():
                fail(f"pip's setting {key} names {path}, which is not a file: correct it (pip config list)")
            inside[key] = CERTIFICATES[key]
            found += ["--secret", f"id=pip-{key},src={path}"]
    if inside:
        lines = ["[global]", *(f"{key} = {value}" for key, value in inside.items())]
        (folder / "pip.conf").write_text("\n".join(lines) + "\n")
        found += ["--secret", f"id=pip.conf,src={folder / 'pip.conf'}"]
    if staging.exists():
        found += ["--build-context", f"pip-folders={staging}"]
    if left := sorted(here.keys() - inside.keys()):
        note(f"the image build leaves out pip's {', '.join(left)}: the locks say what is installed")
    return found


def note(sentence: str) -> None:
    """Print a note for the caller."""
    print(f"note: {sentence}", file=sys.stderr)


def fail(sentence: str) -> NoReturn:
    """Exit with an error message."""
    sys.exit(f"error: {sentence}")


if __name__ == "__main__":
    print(*flags(Path(sys.argv[1])), sep="\n", end="")
