"""Which lines are a kernel's own, wherever it was compiled, and how they are written."""

from pathlib import Path

import pytest

from kernel_pipeline import loading
from pipeline.inspection.sources import REPOSITORY, SourceLine, Sources

OUTSIDE = Sources(Path("/scratch/me/odd"))

TORCH = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    ("path", "below"),
    [
        (f"{loading.ROOT}/softmax/triton.py", "kernels/softmax/triton.py"),
        (f"{loading.ROOT}/rows.py", "kernels/rows.py"),
        ("/elsewhere/kernels/softmax/parts/deep-er.py", "kernels/softmax/parts/deep-er.py"),
        ("/scratch/kernels/clone/kernels/softmax/cuda.cu", "kernels/softmax/cuda.cu"),
        ("kernels/include/rows.cuh", "kernels/include/rows.cuh"),
        ("/scratch/me/odd/triton.py", None),
        (f"{TORCH}/peer/kernels/softmax.py", None),
        ("/usr/include/math.h", None),
    ],
)
def test_files_of_the_repository(path: str, below: str | None) -> None:
    assert REPOSITORY.below(path) == below


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("/scratch/me/odd/left hand/triton.py", "odd/left hand/triton.py"),
        ("odd/halves.cu", "odd/halves.cu"),
        (f"{loading.ROOT}/include/common.cuh", "kernels/include/common.cuh"),
        ("/scratch/you/odd/triton.py", None),
    ],
)
def test_files_of_a_kernel_outside_of_it(path: str, below: str | None) -> None:
    assert OUTSIDE.below(path) == below


def test_texts_hold_no_folder_of_this_machine() -> None:
    text = f'.file 1 "/scratch/me/odd/triton.py" .file 2 "{TORCH}/triton/language/core.py" // at 1/2'
    assert OUTSIDE.portable(text) == '.file 1 "odd/triton.py" .file 2 "triton/language/core.py" // at 1/2'


def test_a_line_is_shown_with_its_text_wherever_it_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/one.py").write_text("first\n  second\n")
    sources = Sources(tmp_path / "odd")
    line = SourceLine(f"{tmp_path}/odd/one.py", 2)
    assert (sources.place(line), sources.text(line)) == ("odd/one.py:2", "second")
    assert sources.text(SourceLine("odd/one.py", 1)) == "first", "as nvcc was told it"
    assert sources.place(SourceLine("/a/copy/odd/one.py", 1)) == "odd/one.py:1", (
        "as Triton's cache may have it"
    )
    assert sources.text(SourceLine(f"{tmp_path}/odd/one.py", 9)) == ""
    elsewhere = SourceLine("/elsewhere/kernel_pipeline/contract.py", 1)
    assert REPOSITORY.text(elsewhere) == (loading.LIBRARY / "contract.py").read_text().splitlines()[0]


def test_an_instruction_belongs_to_the_innermost_own_line_or_the_outermost() -> None:
    chain = [
        SourceLine("/usr/include/a.h", 1),
        SourceLine("/scratch/me/odd/b.cu", 2),
        SourceLine("/scratch/me/odd/c.cu", 3),
    ]
    assert OUTSIDE.own(chain) == chain[1]
    assert REPOSITORY.own(chain) == chain[2]
    assert REPOSITORY.own([]) is None
