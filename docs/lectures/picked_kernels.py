"""The kernel that torch launched at each size, from the profiles of an H200 in results/profile/."""

from __future__ import annotations

import json
import re
from pathlib import Path


def short(name: str) -> str:
    """A kernel's name without its namespaces, template arguments and parameters."""
    plain = re.sub(r"\(anonymous namespace\)::|at::native::", "", name.removeprefix("void "))
    return re.split(r"[<(]", plain)[0]


print("kernel   problem              us  launched by torch")
for kernel, names in (("softmax", ("rows", "columns")), ("matmul", ("m", "n", "k"))):
    for line in Path("results/profile", kernel, "nvidia-h200.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["point"]["provider"] == "torch":
            problem = " x ".join(str(row["point"]["problem"][name]) for name in names)
            launched = ", ".join(short(one["name"]) for one in row["kernels"])
            print(f"{kernel:8} {problem:18}{row['device_us']:5.0f}  {launched}")
