"""A kernel's YAML: what it may say, what it is merged from, and what is said of a mistake."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel_pipeline import loading
from kernel_pipeline.errors import UserError
from pipeline.points import catalog
from pipeline.points.catalog import KernelConfig
from tests.planted import outside

Read = Callable[..., KernelConfig]
GOOD = {"workloads": {"columns": {"x": "size", "size": 64}}, "presets": {"smoke": {"workloads": "columns"}}}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads YAML files, by their names, as softmax's: the last on top."""

    def config(**files: Any) -> KernelConfig:
        for name, content in files.items():
            text = content if isinstance(content, str) else yaml.safe_dump(content)
            (tmp_path / f"{name}.yaml").write_text(text)
        return catalog.read(tmp_path / f"{name}.yaml", loading.load("softmax"))

    return config


@pytest.mark.parametrize("kernel", loading.names())
def test_every_kernels_yaml_is_right_and_has_the_presets_that_people_use(kernel: str) -> None:
    entry = catalog.find(kernel)
    assert entry.name == kernel
    assert {"smoke", "cpu", "quick", "standard"} <= set(entry.config.presets)
    for name in entry.config.workloads:
        assert entry.x_dimension(name) in entry.loaded.kernel.dimensions()


def test_what_is_single_is_a_list_of_it(read: Read) -> None:
    config = read(top=GOOD)
    assert config.workloads["columns"].size == (64,)
    assert config.presets["smoke"][0].workloads == ("columns",)
    told = {"workloads": "columns", "triton_row": {"num_warps": 4}, "*": "all", "cuda": None}
    (group,) = read(top=GOOD | {"presets": {"smoke": told}}).presets["smoke"]
    assert group.configurations == {"triton_row": {"num_warps": (4,)}, "*": "all", "cuda": None}


def test_values_keep_their_kind(read: Read) -> None:
    workload = {"x": "size", "size": 64, "dtype": ["float32"], "problems": [{"rows": 1}, {"rows": 2}]}
    found = read(top=GOOD | {"workloads": {"columns": workload}}).workloads["columns"]
    assert found.lists == {"dtype": ("float32",)}
    assert found.problems == ({"rows": 1}, {"rows": 2})


def test_the_x_axis_and_the_headline_are_a_workloads_or_the_kernels(tmp_path: Path) -> None:
    workloads = {"plain": {"x": "size", "size": 64}, "few": {"x": "rows", "size": 64, "headline": "tflops"}}
    entry = catalog.find("softmax")
    config = KernelConfig.model_validate({"workloads": workloads, "presets": {}})
    made = catalog.Entry(entry.loaded, config, tmp_path)
    assert [made.x_dimension(name) for name in ("plain", "few", "of an older row")] == [
        *("columns", "rows", "columns")
    ]
    assert [made.headline(name) for name in ("plain", "few", "of an older row")] == [
        *("gbps", "tflops", "gbps")
    ]


def test_mappings_are_merged_over_the_base_and_all_else_is_replaced(read: Read) -> None:
    base = {
        "workloads": {
            "columns": {"x": "size", "size": [64, 128], "dtype": ["float32"]},
            "few": {"x": "rows", "size": 64, "rows": [1]},
        },
        "presets": {
            "smoke": [{"workloads": ["columns"]}, {"workloads": ["few"]}],
            "quick": {"workloads": "few"},
        },
    }
    top = {
        "base": "base.yaml",
        "workloads": {"columns": {"size": [256]}, "new": {"x": "size", "size": 1}},
        "presets": {"smoke": {"workloads": "new"}},
    }
    config = read(base=base, top=top)
    assert config.workloads["columns"].size == (256,)
    assert config.workloads["columns"].lists == {"dtype": ("float32",)}
    assert set(config.workloads) == {"columns", "few", "new"}
    assert [group.workloads for group in config.presets["smoke"]] == [("new",)]
    assert [group.workloads for group in config.presets["quick"]] == [("few",)]
    assert set(read(base=base, middle={"base": "base.yaml"}, end={"base": "middle.yaml"}).workloads) == {
        *("columns", "few")
    }


def over(**change: Any) -> dict[str, Any]:
    return GOOD | change


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("workloads: {columns: [", r"^can't read .*top\.yaml, line 1: "),
        ("", r"top\.yaml: workloads: Field required"),
        ("[1]", r"top\.yaml: "),
        (over(colour="red"), r"top\.yaml: colour: "),
        (over(base="nowhere.yaml"), r"nowhere\.yaml does not exist: list the problems of softmax"),
        (over(base="top.yaml"), r"top\.yaml: base: must be the name of another file, not top\.yaml"),
        (over(base=["a"]), r"top\.yaml: base: must be the name of another file"),
        (over(workloads={"columns": {"size": 64}}), r"workloads\.columns\.x: Field required"),
        (over(workloads={"columns": {"x": "size", "size": []}}), r"workloads\.columns\.size"),
        (
            over(workloads={"columns": {"x": "size", "size": 64, "headline": "speed"}}),
            r"workloads\.columns\.headline: Input should be 'gbps' or 'tflops'",
        ),
        (
            over(workloads={"columns": {"x": "size", "size": 64, "colums": [3]}}),
            r"workload columns: unknown dimension 'colums'\. Did you mean 'columns'\?",
        ),
        (
            over(workloads={"columns": {"x": "size", "problems": [{"row": 1}]}}),
            r"workload columns: unknown dimension 'row'",
        ),
        (over(presets={"smoke": []}), r"presets\.smoke"),
        (
            over(presets={"smoke": {"workloads": "column"}}),
            r"preset smoke: unknown workload 'column'\. Did you mean 'columns'\?",
        ),
        (
            over(presets={"smoke": {"workloads": "columns", "triton_rows": "all"}}),
            r"preset smoke: unknown provider 'triton_rows'\. Did you mean 'triton_row'\?",
        ),
        (
            over(presets={"smoke": {"workloads": "columns", "triton_row": [{"num_warps": 4}, {"warps": 4}]}}),
            r"preset smoke: unknown parameter 'warps'\. Did you mean 'num_warps'\?",
        ),
        (
            over(presets={"smoke": {"workloads": "columns", "cuda": [{"num_warps": 4}, "all"]}}),
            r"presets\.smoke\.0\.cuda\.several\.1: Input should be a valid dictionary",
        ),
        (
            over(presets={"smoke": {"workloads": "columns", "cuda": {"num_warps": []}}}),
            r"presets\.smoke\.0\.cuda\.lists\.num_warps: .* at least 1 item",
        ),
        (over(presets={"smoke": {"workloads": "columns", "cuda": "most"}}), r"presets\.smoke\.0\.cuda"),
    ],
    ids=str,
)
def test_a_mistake_is_said_with_its_file_and_place(read: Read, content: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read(top=content)


def test_a_kernel_outside_of_the_repository_has_its_yaml_beside_it(tmp_path: Path) -> None:
    folder = outside.write(tmp_path)
    entry = catalog.find(str(folder))
    assert (entry.name, entry.path) == ("double", folder / "kernel.yaml")
    assert entry.loaded.is_outside
    assert catalog.find(f"{folder}/").loaded == entry.loaded, "however its path is written"
    (folder / "kernel.yaml").unlink()
    assert catalog.find(str(folder)).path is None, "the command line names the dimensions"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"__init__\.py does not exist; a kernel's folder needs it\."),
        ("x = 1", r"__init__\.py declares no `kernel = Kernel\(\.\.\.\)`\."),
        (
            "import nowhere_at_all",
            r"can't be imported: .*/__init__\.py:1: `import nowhere_at_all`: ModuleNotFoundError: No module",
        ),
        ("def f(:", r"can't be imported: .*/__init__\.py:1: `def f\(:`: SyntaxError: "),
        (
            'from kernel_pipeline.contract import Provider\nProvider("p", "torch.py")',
            r"__init__\.py: entry 'torch\.py' of p must be FILE:FUNCTION\.",
        ),
    ],
    ids=str,
)
def test_a_folder_that_declares_no_kernel_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    if text is not None:
        (folder / "__init__.py").write_text(text)
    with pytest.raises(UserError, match=said):
        catalog.find(str(folder))


def test_a_kernel_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(
        UserError, match=r"^unknown kernel 'softmx'\. Did you mean 'softmax'\? Known: .*matmul"
    ):
        catalog.find("softmx")


def test_a_value_that_no_provider_takes_is_said_with_its_place(read: Read) -> None:
    told = {"workloads": "columns", "*": {"block_size": [1000]}}
    with pytest.raises(UserError, match=r"preset smoke: block_size: must be one of 256, 512, .*, not 1000\."):
        read(top=GOOD | {"presets": {"smoke": told}})


def test_names_that_files_are_named_after_are_words(read: Read, tmp_path: Path) -> None:
    workload = GOOD["workloads"]["columns"]
    with pytest.raises(UserError, match=r"workloads\.\.\./\.\./plot"):
        read(top=GOOD | {"workloads": {"../../plot": workload}, "presets": {}})
    folder = tmp_path / "my kernel"
    shutil.copytree(Path(outside.__file__).with_name("doubled"), folder)
    with pytest.raises(
        UserError, match="'my kernel' can't be part of a file name; write letters, digits and"
    ):
        catalog.find(str(folder))
