"""The images, built with Buildah from the distribution's packages and run: ``make test-docker``.

No Docker daemon and no registry are needed. What takes the vendor's base image or a GPU is not tried.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import ROOT
from tests.docker.buildah import BASE, Buildah, certificates, missing, pip_settings
from tests.mlflow_store import shown
from tests.project import STAGES, Project, ran, skipped

WANTED = os.environ.get("TEST_PROOFS", "").split()
UID, GID = 4321, 8765
"""An account that this machine does not have."""

CAP_SYS_ADMIN = 1 << 21

pytestmark = [
    pytest.mark.xdist_group("images"),
    pytest.mark.skipif(not WANTED, reason="`make test-docker` builds images, in minutes"),
    pytest.mark.skipif(bool(WANTED) and missing() is not None, reason=str(missing())),
]
needs_cpu = pytest.mark.skipif("cpu" not in WANTED, reason="TEST_PROOFS leaves the CPU image out")
needs_gpu = pytest.mark.skipif("gpu" not in WANTED, reason="TEST_PROOFS leaves the GPU image out")


class Checkout:
    """A repository that belongs to somebody, whom root builds images for."""

    def __init__(self, folder: Path, buildah: Buildah) -> None:
        self.buildah = buildah
        self.containers: dict[str, str] = {}
        self.project = Project(folder)
        self.project.create("square")
        self.project.measure_less()
        self.project.commit("Fewer points")
        self.root = self.project.root
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, UID, GID, follow_symlinks=False)
        trusting = {"BUILD_FLAGS": " ".join(certificates())}
        (folder / "settings").mkdir()
        self.env = {
            # The GPU image's locks name files of the public index, so it takes no other.
            "gpu": {
                "BUILD_FLAGS": f"{trusting['BUILD_FLAGS']} --build-arg NCU_PACKAGE=nsight-compute",
                "PIP_CONFIG_FILE": os.devnull,
            },
            "cpu": trusting | pip_settings(folder / "settings"),
            "server": trusting,
        }

    def run(self, kind: str, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.buildah.docker_run(self.root, kind, *command, env=self.env[kind] | env)

    def shell(self, kind: str, script: str) -> str:
        """What a shell prints in the image that the last build made, where the checkout is mounted. Each
        image has one container: where layers can't share files, it is a copy of gigabytes."""
        name = f"kernel-pipeline:{kind}"
        digest = self.buildah.image(name)["FromImageDigest"]
        if digest not in self.containers:
            self.containers[digest] = self.buildah("from", name)
        container = self.containers[digest]
        mounted = ("--volume", f"{self.root}:{self.root}", "--workingdir", str(self.root))
        return self.buildah("run", *mounted, container, "--", "sh", "-c", script)

    def commit(self) -> str:
        trusted = f"safe.directory={self.root}"
        return self.project.run("git", "-c", trusted, "rev-parse", "HEAD").stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    buildah = Buildah(tmp_path_factory.mktemp("buildah"))
    try:
        buildah.bootstrap()
        yield Checkout(tmp_path_factory.mktemp("checkout"), buildah)
    finally:
        buildah.end()


@pytest.fixture(scope="module")
def reproduced(checkout: Checkout) -> subprocess.CompletedProcess[str]:
    """What the first ``make docker-cpu`` prints."""
    return checkout.run("cpu", "make", "repro")


def reused(output: str) -> dict[str, bool]:
    """The steps of a build, and whether each was taken from the last one."""
    steps = re.findall(r"^\[\d/\d\] STEP \d+/\d+: (.*)\n(-->.*)?", output, re.MULTILINE)
    return {step: "Using cache" in after for step, after in steps if not step.startswith("FROM")}


def layers(buildah: Buildah, name: str) -> list[str]:
    return list(buildah.image(name)["OCIv1"]["rootfs"]["diff_ids"])


@needs_cpu
def test_the_pipeline_runs_inside_and_leaves_its_results_to_the_checkouts_owner(
    checkout: Checkout, reproduced: subprocess.CompletedProcess[str]
) -> None:
    project = checkout.project
    assert sorted(ran(reproduced.stdout)) == sorted(STAGES)
    # On a busy machine all times are in doubt.
    table, count = reproduced.stdout.splitlines()[-2:]
    assert "All machines side by side: local/reports/report.html." in table or "all are in doubt" in table
    assert count == "8 rows were measured in this checkout, 8 of them now."
    strangers = [p for p in checkout.root.rglob("*") if (p.lstat().st_uid, p.lstat().st_gid) != (UID, GID)]
    assert not strangers
    for kernel in project.kernels():
        rows = project.rows(kernel).values()
        assert {"ok", "verified"} <= {row.outcome.status for row in rows}
        assert all(row.rate is not None and row.rate.gbps > 0 for row in rows if row.outcome.status == "ok")
        assert f"{kernel} @ {project.gpu()}" in shown(checkout.root / "mlflow.db", kernel)


@needs_cpu
def test_the_build_says_which_of_pips_settings_it_leaves_out(
    reproduced: subprocess.CompletedProcess[str],
) -> None:
    (note,) = (line for line in reproduced.stderr.splitlines() if line.startswith("note: the image build"))
    assert {"constraint", "requirement"} <= set(re.findall(r"[\w-]+", note))
    assert not {"cert", "find-links"} & set(re.findall(r"[\w-]+", note))


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_every_row_and_run_names_the_image_and_its_base(checkout: Checkout) -> None:
    digests = {
        name: checkout.buildah.image(name)["FromImageDigest"] for name in ("kernel-pipeline:cpu", BASE)
    }
    told = {
        "image": f"kernel-pipeline:cpu@{digests['kernel-pipeline:cpu']}",
        "base_image": f"{BASE}@{digests[BASE]}",
    }
    assert all(re.search("@sha256:[0-9a-f]{64}$", name) for name in told.values())
    project = checkout.project
    record = project.read_json(f"local/results/environment/{project.gpu()}.json")
    assert told.items() <= record.items()
    for kernel in project.kernels():
        rows = project.rows(kernel).values()
        assert all(told.items() <= row.origin.to_dict().items() for row in rows)
        for run in shown(checkout.root / "mlflow.db", kernel).values():
            assert told.items() <= run["tags"].items()


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_after_an_edit_and_a_commit_no_layer_is_built_and_nothing_measured(checkout: Checkout) -> None:
    before = checkout.buildah.image("kernel-pipeline:cpu")["FromImageDigest"]
    checkout.project.edit("pipeline/ui.py", lambda text: f"{text}\n# The same.\n")
    done = checkout.run("cpu", "make", "repro")
    # Buildah was seen once to copy an unchanged file again, into the same layer: what runs is what counts.
    steps = {step: taken for step, taken in reused(done.stdout).items() if step.startswith("RUN")}
    assert len(steps) > 2 and all(steps.values()), done.stdout[:3000]
    assert checkout.buildah.image("kernel-pipeline:cpu")["FromImageDigest"] == before
    log = (checkout.root / "local/repro.log").read_text()
    assert ran(log) == ["environment"]
    assert {"report", "publish"} <= set(skipped(log))


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_an_image_with_the_code_in_it_reuses_all_below_the_code(checkout: Checkout) -> None:
    checkout.run("cpu")
    commit = checkout.commit()
    name = f"kernel-pipeline:cpu-{commit[:12]}"
    first = layers(checkout.buildah, name)
    checkout.project.edit("pipeline/ui.py", lambda text: f"{text}\n# Again.\n")
    steps = reused(checkout.run("cpu").stdout)
    assert [taken for step, taken in steps.items() if "locks/install.py runtime" in step] == [True]
    assert steps["COPY --chown=$UID:$GID . ."] is False, "the code is another"
    second = layers(checkout.buildah, name)
    assert first[: len(layers(checkout.buildah, "kernel-pipeline:cpu"))] == layers(
        checkout.buildah, "kernel-pipeline:cpu"
    )
    changed = [number for number, pair in enumerate(zip(first, second, strict=True)) if len(set(pair)) == 2]
    assert changed and changed[0] >= len(layers(checkout.buildah, "kernel-pipeline:cpu"))

    config = checkout.buildah.image(name)["Docker"]["config"]
    assert config["User"] == f"{UID}:{GID}"
    labels = config["Labels"]
    assert labels["org.opencontainers.image.revision"] == commit
    assert labels["org.opencontainers.image.base.name"] == BASE
    assert re.fullmatch("[0-9a-f]{16}", labels["kernel-pipeline.lock"])
    inside = checkout.buildah("from", name)
    look = ("sh", "-c", "git rev-parse HEAD && stat --format %u:%g pipeline && ls -A")
    seen, owner, *files = checkout.buildah("run", inside, "--", *look).splitlines()
    assert (seen, owner) == (commit, f"{UID}:{GID}")
    assert {"pipeline", "dvc.yaml", ".git"} <= set(files)
    assert not {"build", "mlflow.db", ".venv"} & set(files)


def pins(*locks: str) -> dict[str, str]:
    """The versions that locks pin, by package."""
    found = {}
    for lock in locks:
        found |= dict(re.findall(r"(?m)^([a-z0-9-]+)==(\S+)", (ROOT / "locks" / f"{lock}.lock").read_text()))
    return found


def materials(printed: str) -> dict[str, str]:
    """The versions that a CycloneDX bill of materials lists, by package."""
    bill = json.loads(printed)
    assert bill["bomFormat"] == "CycloneDX"
    return {re.sub("[-_.]+", "-", each["name"]).lower(): each["version"] for each in bill["components"]}


SBOM = "/opt/venv/sbom.cdx.json"

LEFT_BEHIND = (
    "find / -xdev \\( -name '*.whl' -o -name '*.deb' -o -path '*/.cache/*'"
    " -o -name pip.conf -o -name 'pip-*.pem' -o -name pip-folders \\)"
    " -not -path '/usr/share/python-wheels/*' -not -path '/proc/*' -not -path '/tmp/*' -print;"
    # Folders that a build had mounted stay as empty ones.
    " find /var/lib/apt/lists /opt -mindepth 1 -maxdepth 1 -not -empty"
)


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_no_cache_no_wheel_and_no_setting_of_pips_is_left_behind(checkout: Checkout) -> None:
    found = checkout.shell("cpu", LEFT_BEHIND).splitlines()
    assert found == ["/opt/venv"]


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_the_bill_of_materials_lists_what_is_inside_and_all_of_it_is_locked(checkout: Checkout) -> None:
    listed = materials(checkout.shell("cpu", f"cat {SBOM}"))
    inside = "import importlib.metadata as m; print(*{d.name for d in m.distributions()})"
    assert set(listed) == {
        re.sub("[-_.]+", "-", name).lower() for name in checkout.shell("cpu", f'python -c "{inside}"').split()
    }
    locked = pins("runtime", "nvcc", "torch-cuda", "torch-cpu")
    assert {"torch", "triton", "mlflow", "setuptools", "nvidia-cuda-nvcc"} <= set(listed)
    # Python's own venv brought pip.
    assert set(listed) - set(locked) == {"pip"}
    assert "cyclonedx-bom" not in listed
    labels = checkout.buildah.image("kernel-pipeline:cpu")["Docker"]["config"]["Labels"]
    assert labels["kernel-pipeline.sbom"] == SBOM


@needs_cpu
@pytest.mark.usefixtures("reproduced")
def test_a_capability_is_given_on_request_only_and_to_the_owner(checkout: Checkout) -> None:
    look = "id -u; sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status"
    account, capabilities = checkout.shell("cpu", look).split()
    assert (account, int(capabilities, 16)) == (str(UID), 0)
    printed = checkout.run("cpu", "sh", "-c", look, COUNTERS="1").stdout
    account, capabilities = printed.split()[-2:]
    assert (account, int(capabilities, 16)) == (str(UID), CAP_SYS_ADMIN)


@needs_gpu
def test_the_gpu_image_holds_the_locked_torch_with_cuda_once_a_compiler_and_ncu(checkout: Checkout) -> None:
    checkout.run("gpu", "true")
    look = (
        "python -c 'import torch; print(torch.__version__, torch.version.cuda)';"
        "python -c 'from kernel_pipeline.machine.fingerprint import find_nvcc; print(find_nvcc().version)';"
        "ncu --version | grep -c 'Nsight Compute';"
        "for name in libtorch_cuda.so libcublas.so libcudnn.so libcudart.so libnccl.so;"
        " do find / -xdev -name $name'*' -type f -not -path '/proc/*' | wc -l; done"
    )
    torch, nvcc, ncu, *copies = checkout.shell("gpu", look).splitlines()
    assert torch.split("+")[0] == pins("torch-cuda")["torch"]
    listed = materials(checkout.shell("gpu", f"cat {SBOM}"))
    assert {"torch", "nvidia-cublas", "nvidia-cuda-nvcc"} <= set(listed)
    assert re.search(r" 13\.\d+$", torch), "built for CUDA"
    assert nvcc.startswith("13.0")
    assert int(ncu) >= 1
    assert copies == ["1"] * 5
    assert checkout.shell("gpu", LEFT_BEHIND).splitlines() == ["/opt/venv"]


@pytest.mark.skipif("server" not in WANTED, reason="TEST_PROOFS leaves the server's image out")
def test_the_servers_image_has_the_locked_mlflow_the_driver_a_check_and_a_health_check(
    checkout: Checkout,
) -> None:
    name = "kernel-pipeline:server"
    checkout.run("server")
    config = checkout.buildah.image(name)["Docker"]["config"]
    assert config["User"] == "1000:1000"
    assert "/health" in " ".join(config["Healthcheck"]["Test"])
    container = checkout.buildah("from", name)
    look = "import mlflow, os, psycopg2; print(mlflow.__version__, os.access('/artifacts', os.W_OK))"
    run = (
        "run",
        "--env",
        "POSTGRES_PASSWORD=secret",
        container,
        "--",
        "server-entrypoint",
        "python",
        "-c",
        look,
    )
    assert checkout.buildah(*run).split() == [pins("server")["mlflow"], "True"]
    listed = materials(checkout.buildah("run", container, "--", "cat", SBOM))
    assert {"mlflow", "psycopg2-binary"} <= set(listed)
