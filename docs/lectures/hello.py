# %% [markdown]
# # 3. Hello, world in C++
# %%
"""A C++ function for Python by torch's load_inline, and the build.ninja that it writes."""

from __future__ import annotations

from pathlib import Path

from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <pybind11/pybind11.h>
#include <string>

std::string hello() { return "Hello, world"; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("hello", &hello); }
"""

# %% [markdown]
# `load_inline` writes the source to a file and a `build.ninja` beside it, runs ninja, and imports the
# library. `no_implicit_headers` leaves out `torch/extension.h`, which takes half a minute to compile: there
# is no tensor here.
# %%
folder = Path("outputs/lectures/hello")
folder.mkdir(parents=True, exist_ok=True)
module = load_inline("hello", SOURCE, build_directory=str(folder), no_implicit_headers=True)
print(module.hello())
print(", ".join(sorted(path.name for path in folder.iterdir() if path.name != "lock")))

# %% [markdown]
# The rules of `build.ninja`, and the files that they make.
# %%
lines = (folder / "build.ninja").read_text().splitlines()
print("\n".join(line for line in lines if line.startswith(("rule", "build", "default"))))
