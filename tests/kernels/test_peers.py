"""Other projects' kernels: declared everywhere, called where their packages are installed."""

import ast
import importlib.metadata
import json
import os
import sys
from pathlib import Path

import pytest

from kernel_pipeline import loading
from kernel_pipeline.contract import Provider
from kernel_pipeline.loading import Loaded
from tests.kernels.kernel_cases import EVERY_KERNEL
from tests.processes import completed

PACKAGES = {"quack": "quack-kernels", "liger": "liger-kernel"}

# What they are called with, written down instead of computed.
STUBS = {
    "quack/__init__.py": "",
    "quack/softmax.py": """
def softmax_fwd(x): return 2 * x
def softmax_bwd(dy, y): return (dy - (dy * y).sum(1, keepdim=True)) * y
""",
    "quack/rmsnorm.py": """
def rmsnorm_fwd(x, weight, eps): return 3 * x + eps, None, None
def _rmsnorm_fwd(x, weight, out, bias, eps, is_layernorm): out.copy_(4 * x + eps if is_layernorm else x)
def rmsnorm_bwd(x, weight, dout, rstd): return *layernorm_bwd(x, weight, dout, rstd, None)[:2], None, None
def layernorm_bwd(x, weight, dout, rstd, mean):
    n = (x if mean is None else x - mean[:, None]) * rstd[:, None]
    g = dout * weight
    given = g if mean is None else g - g.mean(1, keepdim=True)
    return rstd[:, None] * (given - n * (g * n).mean(1, keepdim=True)), (dout * n).sum(0), dout.sum(0)
""",
    "liger_kernel/__init__.py": "",
    "liger_kernel/ops/utils.py": "def calculate_settings(columns): return 2 * columns, 4",
    "liger_kernel/ops/__init__.py": "",
    "liger_kernel/ops/softmax.py": """
class LigerSoftmaxFunction:
    apply = staticmethod(lambda x: 5 * x)
def _softmax_backward(dy, y, block_size, num_warps, multi_block_launch):
    assert (block_size, num_warps, multi_block_launch) == (2 * y.shape[1], 4, False)
    return (dy - (dy * y).sum(1, keepdim=True)) * y
""",
    "liger_kernel/ops/rms_norm.py": """
def rms_norm_forward(x, weight, eps, offset, casting_mode, row_mode): return 6 * x + eps + offset, None
def rms_norm_backward(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode):
    from quack.rmsnorm import rmsnorm_bwd
    assert (offset, casting_mode, BLOCK_SIZE, num_warps) == (0.0, 1, 2 * X.shape[1], 4)
    assert in_place is False and row_mode is None
    return rmsnorm_bwd(X, W, dY, RSTD)[:2]
""",
    "liger_kernel/ops/layer_norm.py": """
def layer_norm_forward(x, w, b, eps): return 7 * x + eps, None
def layer_norm_backward(dY, X, W, B, Mean, RSTD):
    from quack.rmsnorm import layernorm_bwd
    return layernorm_bwd(X, W, dY, RSTD, Mean)
""",
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
import json, sys, torch
from kernel_pipeline import loading
found = {}
for called in sys.argv[1:]:
    name, peer = called.split()
    loaded = loading.load(name)
    provider = loaded.kernel.provider(peer)
    problem = loaded.kernel.problem(rows=2, columns=3, dtype="float64")
    inputs = loaded.inputs(problem, torch.device("cpu"), 0)
    entry = loaded.entry(provider)
    assert not {"quack", "liger_kernel"} & set(sys.modules) or found
    ratios = entry(*inputs) / inputs[0]
    found[called] = [provider.is_installed, ratios[0].tolist(), inputs[0][0].tolist()]
for name in ("softmax_backward", "rmsnorm_backward", "layernorm_backward"):
    loaded = loading.load(name)
    problem = loaded.kernel.problem(rows=5, columns=7)
    inputs = loaded.inputs(problem, torch.device("cpu"), 0)
    for peer in ("quack", "liger"):
        made = loading.as_tuple(loaded.entry(loaded.kernel.provider(peer))(*inputs))
        for out, exact in zip(made, loaded.expected(problem, inputs), strict=True):
            torch.testing.assert_close(out, exact.float(), msg=lambda said: f"{name} {peer}: {said}")
print(json.dumps(found))
"""
PEERS = [
    pytest.param(loaded, provider, id=f"{loaded.name}-{provider.name}")
    for loaded in EVERY_KERNEL
    for provider in loaded.kernel.providers
    if provider.package is not None
]


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


def test_an_installed_peer_gets_what_it_and_its_backward_pass_take(site: Path) -> None:
    done = completed(
        [sys.executable, "-c", CALL, *(f"{kernel} {peer}" for kernel, peer in FACTORS)],
        cwd=loading.ROOT.parent,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for (kernel, peer), (factor, added) in FACTORS.items():
        is_installed, ratios, values = found[f"{kernel} {peer}"]
        assert loading.load(kernel).kernel.provider(peer).package == PACKAGES[peer]
        assert is_installed
        assert ratios == pytest.approx([factor + added / value for value in values])


@pytest.mark.parametrize(("loaded", "provider"), PEERS)
def test_a_peer_is_not_ours_and_knows_whether_it_is_there(loaded: Loaded, provider: Provider) -> None:
    assert not provider.is_own
    assert not provider.interpreted
    assert provider.devices == ("cuda",)
    assert loaded.kernel.baseline != provider.name
    installed = {distribution.metadata["Name"] for distribution in importlib.metadata.distributions()}
    assert provider.is_installed == (provider.package in installed)


@pytest.mark.parametrize(("loaded", "provider"), PEERS)
def test_a_peers_package_is_imported_when_it_is_called(loaded: Loaded, provider: Provider) -> None:
    tree = ast.parse((loaded.folder / provider.file).read_text())
    names = {
        alias.name if isinstance(node, ast.Import) else "kernels" if node.level else node.module or ""
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in names} <= {
        "__future__",
        "torch",
        "kernel_pipeline",
        "kernels",
        "collections",
        "functools",
    }
