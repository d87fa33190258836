"""docker/run with engines that only write down how they were called."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import completed

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cut", "env", "git", "id", "mktemp", "rm", "sed", "sha256sum", "stat")


class Host:
    """A machine on which nothing is installed but what docker/run may expect, and some engines."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "calls"
        self.bin.mkdir()
        self.log.touch()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, f"{tool} is part of every Linux that runs this"
            (self.bin / tool).symlink_to(found)

    def install(self, name: str, body: str = "") -> None:
        """An engine that appends its arguments to the log, one line a call."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\nprintf "%q " {name} "$@" >>{self.log}\necho >>{self.log}\n{body}\n')
        path.chmod(0o755)

    def account(self, uid: int, gid: int) -> None:
        """Who ``id`` says is calling."""
        (self.bin / "id").unlink()
        path = self.bin / "id"
        path.write_text(
            f"#!/bin/bash\ncase $1 in -u) echo {uid} ;; -g) echo {gid} ;; esac\n"
            "[[ $1 != -un ]] || echo someone\n"
        )
        path.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return completed(
            ["bash", str(ROOT / "docker" / "run"), *arguments],
            env={"PATH": str(self.bin), "HOME": os.environ.get("HOME", "/"), **environment},
            stdin=subprocess.DEVNULL,
        )

    def calls(self, verb: str) -> list[list[str]]:
        lines = [shlex.split(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line[1] == verb]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path)
    made.account(1234, 5678)
    return made


def pairs(call: list[str]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(call))


def test_docker_builds_and_runs_on_the_checkout_as_the_caller(host: Host) -> None:
    host.install("docker")
    result = host.run("gpu", "make", "repro", "ARGS=--force -v")
    assert result.returncode == 0, result.stderr
    (build,), (run,) = host.calls("build"), host.calls("run")
    assert {
        ("--file", "docker/gpu.Dockerfile"),
        ("--tag", "kernel-pipeline:gpu"),
        ("--build-arg", "UID=1234"),
        ("--build-arg", "GID=5678"),
    } <= pairs(build)
    assert build[-1] == "."
    assert ("--target", "environment") in pairs(build), "no code in it, so that a commit does not change it"
    assert {
        ("--volume", f"{ROOT}:{ROOT}"),
        ("--workdir", str(ROOT)),
        ("--user", "1234:5678"),
        ("--gpus", "all"),
    } <= pairs(run)
    assert "--tty" not in run, "stdin is no terminal"
    assert run[run.index("kernel-pipeline:gpu") + 1 :] == ["make", "repro", "ARGS=--force -v"]


def owned_by(host: Host, uid: int, gid: int) -> None:
    """Let the checkout seem to be this account's."""
    (host.bin / "stat").unlink()
    (host.bin / "stat").write_text(f"#!/bin/bash\ncase $2 in %u) echo {uid} ;; %g) echo {gid} ;; esac\n")
    (host.bin / "stat").chmod(0o755)


def test_root_keeps_the_images_own_account_and_its_files(host: Host) -> None:
    host.account(0, 0)
    owned_by(host, 0, 0)
    host.install("docker")
    assert host.run("cpu", "make", "repro").returncode == 0
    assert not any(word.startswith("UID=") for word in host.calls("build")[0])
    assert ("--user", "0:0") in pairs(host.calls("run")[0])


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_root_in_somebody_elses_checkout_runs_as_its_owner(host: Host, engine: str) -> None:
    host.account(0, 0)
    owned_by(host, 1234, 5678)
    host.install(engine, "[[ $1 != from ]] || echo working-container")
    assert host.run("cpu", "make", "repro").returncode == 0
    assert ("--user", "1234:5678") in pairs(host.calls("run")[0])
    assert "--userns" not in host.calls("run")[0]


def test_without_a_command_the_code_is_built_in_and_nothing_runs(host: Host) -> None:
    host.install("docker")
    result = host.run("cpu")
    assert result.returncode == 0, result.stderr
    (build,) = host.calls("build")
    commit = next(word.removeprefix("COMMIT=") for word in build if word.startswith("COMMIT="))
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert ("--tag", f"kernel-pipeline:cpu-{commit[:12]}") in pairs(build)
    assert "--target" not in build
    assert not host.calls("run")


PULLED = """case "$*" in
    "image inspect python:9") [[ -e pulled ]] || exit 1 ;;
    "pull python:9") : >pulled ;;
    "image inspect --format "*python:9) echo docker.io/library/python@sha256:ba5e ;;
    "image inspect --format "*) echo sha256:1a6e ;;
esac"""


def test_the_container_is_told_its_image_and_what_that_was_built_from(host: Host, tmp_path: Path) -> None:
    host.install("docker", PULLED.replace("pulled", str(tmp_path / "pulled")))
    assert host.run("cpu", "make", "repro", BASE_IMAGE="python:9").returncode == 0
    assert host.calls("pull") == [["docker", "pull", "python:9"]]
    assert {("--build-arg", "BASE_IMAGE=python:9"), ("--build-arg", "BASE_DIGEST=sha256:ba5e")} <= pairs(
        host.calls("build")[0]
    )
    assert {
        ("--env", "PIPELINE_IMAGE=kernel-pipeline:cpu@sha256:1a6e"),
        ("--env", "PIPELINE_BASE_IMAGE=python:9@sha256:ba5e"),
    } <= pairs(host.calls("run")[0])


def test_a_server_named_by_the_environment_is_reached_from_inside(host: Host) -> None:
    host.install("docker")
    assert host.run("cpu", "make", MLFLOW_TRACKING_URI="http://127.0.0.1:5000").returncode == 0
    assert {("--env", "MLFLOW_TRACKING_URI"), ("--network", "host")} <= pairs(host.calls("run")[0])
    host.log.write_text("")
    assert host.run("cpu", "make").returncode == 0
    assert "--network" not in host.calls("run")[0]


def test_the_capability_that_counters_need_is_given_on_request_only(host: Host) -> None:
    """Docker grants it to root alone, so root hands it on to the account that the command runs as."""
    host.install("docker")
    assert host.run("gpu", "make", "repro").returncode == 0
    assert "--cap-add" not in host.calls("run")[0]
    assert host.run("cpu", "make", "repro").returncode == 0
    assert "--gpus" not in host.calls("run")[1], "the CPU image asks for no GPU"
    host.log.write_text("")
    assert host.run("gpu", "make", "repro", COUNTERS="1").returncode == 0
    (run,) = host.calls("run")
    assert {
        ("--cap-add", "CAP_SYS_ADMIN"),
        ("--user", "0:0"),
        ("--reuid", "1234"),
        ("--regid", "5678"),
    } <= pairs(run)
    assert run[-3:] == ["--", "make", "repro"]


class Pip:
    """A host whose pip is configured, and an engine that keeps what a build is shown."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host = host
        self.shown = folder / "shown"
        self.shown.mkdir()
        (host.bin / "python3").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        (host.bin / "python3").chmod(0o755)
        self.config = folder / "pip.conf"
        host.install(
            "docker",
            "shopt -s globstar\n"
            "[[ $1 == build ]] || exit 0\n"
            "for word; do case $word in\n"
            f'id=pip*) name=${{word#id=}}; name="{self.shown}/${{name%%,*}}"\n'
            'printf "%s" "$(<"${word#*src=}")" >"$name" ;;\n'
            f'pip-folders=*) cd "${{word#*=}}"; printf "/%s\\n" **/* >"{self.shown}/folders" ;;\n'
            "esac done",
        )

    def build(self, *lines: str, **env: str) -> subprocess.CompletedProcess[str]:
        # In place of this machine's own, which a file of one's own adds to.
        index = ["index-url = https://one.example/simple", "extra-index-url = https://two.example/simple"]
        self.config.write_text("\n".join(["[global]", *index, *lines]) + "\n")
        return self.host.run("cpu", "true", PIP_CONFIG_FILE=str(self.config), **env)

    def inside(self) -> dict[str, str]:
        """The settings that pip has in the image."""
        section, *lines = (self.shown / "pip.conf").read_text().splitlines()
        assert section == "[global]"
        return dict(line.split(" = ", 1) for line in lines)


@pytest.fixture
def pip(host: Host, tmp_path: Path) -> Pip:
    return Pip(host, tmp_path)


def test_a_build_gets_pips_settings_and_the_files_that_they_name_and_no_other(
    pip: Pip, tmp_path: Path
) -> None:
    (tmp_path / "caps.txt").write_text("torch<1\n")
    (tmp_path / "ca.pem").write_text("trusted")
    (tmp_path / "me.pem").write_text("private")
    (tmp_path / "wheels" / "sub").mkdir(parents=True)
    (tmp_path / "wheels" / "sub" / "a.whl").touch()
    index = tmp_path / "my index"
    for name in ("simple/a/index.html", "files/b.whl"):
        (index / name).parent.mkdir(parents=True, exist_ok=True)
        (index / name).touch()
    done = pip.build(
        f"cert = {tmp_path}/ca.pem",
        f"client-cert = {tmp_path}/me.pem",
        f"find-links = {tmp_path}/wheels https://two.example/links",
        "proxy = http://me:hunter2@proxy.example:1",
        f"constraint = {tmp_path}/caps.txt",
        "no-color = true",
        "[install]",
        "timeout = 7",
        f"requirement = {tmp_path}/caps.txt",
        PIP_EXTRA_INDEX_URL=(index / "simple").as_uri(),
        PIP_DEFAULT_TIMEOUT="8",
        PIP_QUIET="1",
    )
    assert done.returncode == 0, done.stderr
    wanted = {
        "index-url": "https://one.example/simple",
        "extra-index-url": Path(f"/pip-folders{index}/simple").as_uri(),
        "find-links": f"/pip-folders{tmp_path}/wheels https://two.example/links",
        "cert": "/etc/pip-cert.pem",
        "client-cert": "/etc/pip-client-cert.pem",
        "proxy": "http://me:hunter2@proxy.example:1",
        "timeout": "8",
    }
    assert wanted.items() <= pip.inside().items()
    assert (pip.shown / "pip-cert").read_text() == "trusted"
    assert (pip.shown / "pip-client-cert").read_text() == "private"
    files = {name for name in (pip.shown / "folders").read_text().splitlines() if "." in Path(name).name}
    assert files == {
        *(f"{index}/{name}" for name in ("simple/a/index.html", "files/b.whl")),
        f"{tmp_path}/wheels/sub/a.whl",
    }
    left = done.stderr.partition("note: the image build leaves out pip's ")[2].partition(":")[0].split(", ")
    assert {"constraint", "no-color", "requirement"} <= set(left) - set(pip.inside())
    assert not {*pip.inside(), "default-timeout", "config-file"} & set(left)
    assert "hunter2" not in pip.host.log.read_text() + done.stderr
    prefix = "id=pip.conf,src="
    (place,) = (word for (build,) in [pip.host.calls("build")] for word in build if word.startswith(prefix))
    assert not Path(place.removeprefix(prefix)).parent.exists(), "it is removed after the build"


def test_every_image_mounts_all_that_a_build_may_be_given() -> None:
    script = (ROOT / "docker" / "pip_settings.py").read_text()
    targets = {"/etc/pip.conf", *re.findall(r'"(/etc/[\w.-]+|/pip-folders)"', script)}
    assert len(targets) == 4
    for kind in ("cpu", "gpu", "server"):
        lines = (ROOT / "docker" / f"{kind}.Dockerfile").read_text().replace("\\\n", " ").splitlines()
        installs = [line for line in lines if line.startswith("RUN") and "install.py" in line]
        assert len(installs) == 2
        assert all(set(re.findall(r"target=(\S+)", line)) == targets for line in installs)


def test_a_certificate_that_is_not_there_ends_the_build_with_a_sentence(pip: Pip, tmp_path: Path) -> None:
    done = pip.build(f"cert = {tmp_path}/none.pem", PIP_CERT=f"{tmp_path}/none.pem")
    assert (done.returncode, pip.host.calls("build")) == (1, [])
    sentence = (
        f"pip's setting cert names {tmp_path}/none.pem, which is not a file: correct it (pip config list)"
    )
    assert f"error: {sentence}\n" in done.stderr


def test_a_folder_that_is_not_there_is_named(pip: Pip, tmp_path: Path) -> None:
    done = pip.build(PIP_FIND_LINKS=f"{tmp_path}/none")
    assert done.returncode == 0, done.stderr
    assert f"note: pip's settings name {tmp_path}/none, which is not there\n" in done.stderr


def test_pips_configuration_is_not_passed_over_in_silence_where_there_is_no_pip(host: Host) -> None:
    host.install("docker")
    done = host.run("cpu", "make", PIP_CONFIG_FILE="/some/pip.conf")
    assert (done.returncode, host.calls("build")) == (1, [])
    assert done.stderr == (
        "error: PIP_CONFIG_FILE is set, but pip, which reads it, is not here: install python3-pip\n"
    )


def test_the_servers_image_is_built_and_keeps_its_own_account(host: Host) -> None:
    host.install("docker")
    assert host.run("server").returncode == 0
    (build,) = host.calls("build")
    assert {("--file", "docker/server.Dockerfile"), ("--tag", "kernel-pipeline:server")} <= pairs(build)
    assert "--target" not in build and not any(word.startswith("UID=") for word in build)
    assert not host.calls("run")


def test_rootless_docker_runs_as_its_own_root(host: Host) -> None:
    host.install("docker", 'echo "[name=seccomp name=rootless]"')
    assert host.run("cpu", "make", "repro").returncode == 0
    assert ("--user", "0:0") in pairs(host.calls("run")[0])


def test_podman_keeps_the_callers_id(host: Host) -> None:
    host.install("podman")
    assert host.run("gpu", "make", "repro").returncode == 0
    assert {("--userns", "keep-id"), ("--device", "nvidia.com/gpu=all"), ("--user", "1234:5678")} <= pairs(
        host.calls("run")[0]
    )


def test_buildah_runs_in_a_container_that_it_removes(host: Host) -> None:
    host.install("buildah", "[[ $1 != from ]] || echo working-container; [[ $1 != run ]] || exit 7")
    result = host.run("cpu", "make", "repro")
    assert result.returncode == 7, result.stderr
    (run,) = host.calls("run")
    assert run[run.index("working-container") :] == ["working-container", "--", "make", "repro"]
    assert host.calls("rm") == [["buildah", "rm", "working-container"]]
    assert host.calls("bud")[0][-1] == "."


def test_an_engine_that_does_not_answer_is_passed_over(host: Host) -> None:
    host.install("docker", "exit 1")
    host.install("podman")
    assert host.run("cpu", "make", "repro").returncode == 0
    assert host.calls("build")[0][0] == "podman"


def test_flags_reach_the_engine(host: Host) -> None:
    host.install("docker")
    host.run("cpu", "bash", BUILD_FLAGS="--build-arg BASE_IMAGE=debian:12", RUN_FLAGS="--cap-add SYS_PTRACE")
    assert ("--build-arg", "BASE_IMAGE=debian:12") in pairs(host.calls("build")[0])
    assert ("--cap-add", "SYS_PTRACE") in pairs(host.calls("run")[0])


@pytest.mark.parametrize("verb", ["build", "run"])
def test_the_exit_code_of_what_failed_is_kept_and_a_failed_build_runs_nothing(host: Host, verb: str) -> None:
    host.install("docker", f"[[ $1 != {verb} ]] || exit 9")
    assert host.run("cpu", "make", "repro").returncode == 9
    assert len(host.calls("run")) == (verb == "run")


@pytest.mark.parametrize(
    ("engines", "arguments", "engine", "sentence"),
    [
        ([], ["gpu", "make"], "", "no container engine found: install docker, podman or buildah"),
        (["docker"], ["gpu", "make"], "", "docker does not answer: 'docker info' says why"),
        (["docker"], ["gpu", "make"], "podman", "podman is not there: leave ENGINE out or install it"),
        ([], ["tpu", "make"], "", "no image is called tpu: write gpu, cpu or server"),
        ([], ["server", "bash"], "", "docker/run server runs nothing: docker/serve starts the server"),
        ([], [], "", "usage: docker/run gpu|cpu [COMMAND...], or docker/run server"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(
    host: Host, engines: list[str], arguments: list[str], engine: str, sentence: str
) -> None:
    for name in engines:
        host.install(name, "exit 1")
    result = host.run(*arguments, ENGINE=engine)
    assert result.returncode == 1
    assert result.stderr == f"error: {sentence}\n"
