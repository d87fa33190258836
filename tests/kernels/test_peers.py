"""Other projects' kernels: providers where their packages are installed, and nothing where they are not."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels

PACKAGES = {"quack": "quack-kernels", "liger": "liger-kernel"}
KERNELS = ["layernorm", "rmsnorm", "softmax"]

# What they are called with, written down instead of computed.
STUBS = {
    "quack/__init__.py": "",
    "quack/softmax.py": "def softmax_fwd(x): return 2 * x",
    "quack/rmsnorm.py": """
def rmsnorm_fwd(x, weight, eps): return 3 * x + eps, None, None
def _rmsnorm_fwd(x, weight, out, bias, eps, is_layernorm): out.copy_(4 * x + eps if is_layernorm else x)
""",
    "liger_kernel/__init__.py": "",
    "liger_kernel/ops/__init__.py": "",
    "liger_kernel/ops/softmax.py": """
class LigerSoftmaxFunction:
    apply = staticmethod(lambda x: 5 * x)
""",
    "liger_kernel/ops/rms_norm.py": """
def rms_norm_forward(x, weight, eps, offset, casting_mode, row_mode): return 6 * x + eps + offset, None
""",
    "liger_kernel/ops/layer_norm.py": "def layer_norm_forward(x, w, b, eps): return 7 * x + eps, None",
}
FACTORS = {
    ("softmax", "quack"): (2, 0),
    ("rmsnorm", "quack"): (3, 1e-6),
    ("layernorm", "quack"): (4, 1e-5),
    ("softmax", "liger"): (5, 0),
    ("rmsnorm", "liger"): (6, 1e-6),
    ("layernorm", "liger"): (7, 1e-5),
}
CALL = """
import json, sys, torch, kernels
loaded = {name: kernels.load(name) for name in kernels.names()}
assert not {"quack", "liger_kernel"} & set(sys.modules)
found = {}
for name, kernel in loaded.items():
    inputs = kernel.inputs((2, 3), torch.float64, torch.device("cpu"), 0)
    for p in kernel.providers:
        if p.package is not None:
            ratios = p.call(*inputs) / inputs[0]
            found[f"{name} {p.name}"] = [p.devices, ratios[0].tolist(), inputs[0][0].tolist()]
print(json.dumps(found))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which both packages are installed, as far as Python can tell."""
    for name, text in STUBS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for package in PACKAGES.values():
        folder = tmp_path / f"{package.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    return tmp_path


def test_an_installed_peer_is_a_provider_and_gets_what_it_takes(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        cwd=kernels.ROOT.parent,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {f"{kernel} {peer}" for kernel in KERNELS for peer in PACKAGES}
    for (kernel, peer), (factor, added) in FACTORS.items():
        devices, ratios, values = found[f"{kernel} {peer}"]
        assert devices == ["cuda"]
        assert ratios == pytest.approx([factor + added / value for value in values])


@pytest.mark.parametrize("name", kernels.names())
def test_a_peer_that_is_not_installed_is_no_provider(name: str) -> None:
    installed = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    providers = {p.name: p.package for p in kernels.load(name).providers}
    for peer, package in PACKAGES.items():
        expected = package if name in KERNELS and package in installed else None
        assert providers.get(peer) == expected
