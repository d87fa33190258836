"""The commands that the documentation shows run and print what it shows, and the names that it mentions
exist."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import ROOT
from pipeline.points import catalog, plan
from tests.processes import completed

PAGES = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)
HELP = (
    "Makefile",
    "dvc.yaml",
    "params.yaml",
    "docker/pin",
    "docker/run",
    "docker/serve",
    "docker/compose.yaml",
)
CONF = tuple(str(path.relative_to(ROOT)) for path in sorted((ROOT / "conf").rglob("*.yaml")))

FENCED = re.compile(r"^```.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"python -m pipeline\.(\w+(?:\.\w+)*)((?:[ \t]+(?:\\\n[ \t]*)?[^\s`#]+)*)")

ENDINGS = r"py|md|yaml|yml|json|jsonl|cu|cuh|cpp|h|svg|csv|html|toml|txt|lock|Dockerfile"
PATH = re.compile(rf"(?:[\w.*@-]+/)+[\w.*@-]*|[\w*-]+\.(?:{ENDINGS})")
"""Matches a whole text that is a path or a file name."""

STANDS_FOR = re.compile(r"<\w+>|NAME|my_kernel|swiglu")
"""Placeholders for the reader's own names, and kernels that the documentation tells the reader to write."""

MADE = ("build", "outputs", "local", "artifacts", "wheelhouse", ".venv", "docker/.env")
"""Paths that a checkout has only after some command has run. git ignores them."""

OF_A_GPU = ("results/tuned/",)
"""Paths that a checkout has once a GPU has fresh rows."""

OF_A_START = {"size", "elements", "dtype", "block_size", "num_warps"}
"""The variables of a kernel that ``pipeline.new`` wrote."""

OUTSIDE = ("path/to/", "/", ".dvc/", "nvidia/", "triton/language/", "Dao-AILab/", "nvidia.com/")
"""Prefixes of paths outside this repository."""

OF_THE_READER = (
    *("look.py", "kernel.yaml", "add.py", ".github/workflows/gate.yml"),
    *("kernels/relu/", ".github/workflows/kernels.yaml", "requirements.txt"),
)
"""Files that the documentation tells the reader to write, files of a kernel in another repository, and files
of a project that ``kernel-pipeline new`` makes."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


def mentioned(page: str) -> Iterator[str]:
    """Yield the texts in backticks, the link targets, and the words in blocks that start with a folder of
    this repository."""
    text = text_of(page)
    prose = FENCED.sub("", text)
    yield from INLINE.findall(prose)
    for link in LINK.findall(prose):
        if "://" not in link and not link.startswith("#"):
            yield os.path.relpath(ROOT / Path(page).parent / link.partition("#")[0], ROOT)
    folders = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir())
    for block in FENCED.findall(text):
        yield from (word.strip("\"',:") for word in block.split() if word.startswith(folders))


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page's paragraphs, list entries and cells, with each code in backticks as
    one word."""
    prose = re.sub(r"<!-- figures.*?<!-- end -->", "", FENCED.sub("", text_of(page)), flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", INLINE.sub("code", prose))
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\||^#.*$", prose, flags=re.MULTILINE)
    for block in blocks:
        if block.startswith(("    ", ">")):
            continue  # a formula, or a command's output
        yield from re.split(r"(?<=[.!?])\s+", " ".join(block.split()))


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/kernels/")])
def test_a_kernels_page_has_no_measured_figure_in_its_prose(page: str) -> None:
    """Measured figures belong in blocks that a command fills, or in pages of docs/log/, which are dated."""
    typed = re.compile(r"\d (?:us|GB/s|TFLOP/s)\b|\d\.\d+ times\b.*\b(?:quack|Liger|cuBLAS|torch)\b")
    assert [one for one in sentences(page) if typed.search(one)] == []


@cache
def names_of_files() -> frozenset[str]:
    """Return the names of all files in the repository's folders."""
    folders = ("kernels", "pipeline", "conf", "docs", "docker", "tests", "results", "reports")
    found = {path.name for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    return frozenset(found | {path.name for path in ROOT.iterdir() if path.is_file()})


def is_there(path: str) -> bool:
    """Return whether a path of the repository exists. A bare file name may be in any folder."""
    pattern = STANDS_FOR.sub("*", path).rstrip("/")
    if "/" not in pattern and not path.endswith("/"):
        return pattern in names_of_files() or any(ROOT.glob(pattern))
    return any(ROOT.glob(pattern))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    missing = []
    for words in mentioned(page):
        path = re.sub(r":\d+$", "", words).removeprefix("./")
        first = path.partition("/")[0]
        is_path = PATH.fullmatch(STANDS_FOR.sub("X", path)) is not None
        # The text cuda/1024x2w has a slash, but is a variant and not a path.
        is_path &= path.endswith("/") or "." in path.rpartition("/")[2] or (ROOT / first).is_dir()
        if not is_path or path.startswith((*OUTSIDE, *OF_A_GPU)) or path in OF_THE_READER:
            continue
        if first not in MADE and path not in MADE and not is_there(path):
            missing.append(words)
    assert missing == [], f"{page} names what is not there"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_section_finds_it(page: str) -> None:
    for link in LINK.findall(FENCED.sub("", text_of(page))):
        target, hash_, section = link.partition("#")
        if "://" in link or not hash_:
            continue
        linked = (ROOT / page).parent / target if target else ROOT / page
        titles = re.findall(r"^#+ (.*)$", FENCED.sub("", linked.read_text()), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert section in slugs, f"{page}: {link}"


DEFINITION = re.compile(r"((?:[\w.]+/)+[\w.]+):([A-Za-z_][\w.]*)")
"""Matches a file and a definition in it: pipeline/sweep.py:Sweep.measure."""


@cache
def names_in(file: Path) -> frozenset[str]:
    """Return the names that a Python file defines, with class members as Class.member. For C++, return
    every word of its code."""
    if file.suffix != ".py":
        return frozenset(re.findall(r"[A-Za-z_]\w*", re.sub(r"//.*", "", file.read_text())))
    found: set[str] = set()

    def add(statements: list[ast.stmt], prefix: str) -> None:
        for one in statements:
            if isinstance(one, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + one.name)
                if isinstance(one, ast.ClassDef):
                    add(one.body, f"{prefix}{one.name}.")
            elif isinstance(one, ast.Assign | ast.AnnAssign):
                targets = one.targets if isinstance(one, ast.Assign) else [one.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    add(ast.parse(file.read_text()).body, "")
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_definition_that_a_page_names_is_there(page: str) -> None:
    missing = []
    for words in INLINE.findall(FENCED.sub("", text_of(page))):
        named = DEFINITION.fullmatch(words)
        if named is None or words.startswith(OUTSIDE):
            continue
        file = ROOT / named[1]
        if not file.is_file() or named[2] not in names_in(file):
            missing.append(words)
    assert missing == [], f"{page} names what is not there"


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each pipeline command on a page as its name and its words."""
    for name, words in COMMAND.findall(text_of(page)):
        yield name, words.replace("\\\n", " ").split()


@pytest.mark.parametrize("page", [*PAGES, *HELP, *CONF])
def test_every_command_that_is_named_exists(page: str) -> None:
    for name, _ in commands(page):
        assert (ROOT / "pipeline" / f"{name.replace('.', '/')}.py").is_file(), (
            f"{page}: python -m pipeline.{name}"
        )


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_is_told_is_one(page: str) -> None:
    for name, words in commands(page):
        conf = ROOT / "conf" / f"{name}.yaml"
        options = [word.split("=", 1) for word in words if "=" in word and not word.startswith(("'", "-"))]
        if not options:
            continue
        known = set(yaml.safe_load(conf.read_text()))
        known |= {group for entry in yaml.safe_load(conf.read_text())["defaults"] for group in entry if group}
        known |= {"hydra/launcher"} if name == "sweep" else set()
        chosen = dict(options).get("kernel")
        if "pin" in known and chosen and (ROOT / "kernels" / chosen).is_dir():
            known |= set(plan.names(catalog.find(chosen)))
        elif "pin" in known and chosen and STANDS_FOR.fullmatch(chosen):
            known |= OF_A_START
        elif "pin" in known and chosen and chosen.startswith(OUTSIDE):
            continue  # it declares dimensions that this repository does not know
        for option, _ in options:
            assert option.split(".")[0] in known, f"{page}: {option}= of pipeline.{name}"


def test_every_command_is_in_the_documentation() -> None:
    """Every module at the top of pipeline/ is a command, and a page mentions it."""
    text = "".join(map(text_of, [*PAGES, *HELP]))
    modules = {path.stem for path in (ROOT / "pipeline").glob("[a-z]*.py")}
    written = re.findall(r"(?:python -m pipeline\.|kernel-pipeline )(\w+)", text)
    assert sorted(modules - set(written)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "title", "last"),
    [
        ("docs/why.md", "## Debugging a Triton kernel", "0.8438"),
        ("docs/first-kernel.md", "## Without a GPU: the interpreter", "1198."),
    ],
)
def test_the_example_of_debugging_a_kernel(tmp_path: Path, page: str, title: str, last: str) -> None:
    """The section's script, run by the section's command, prints the section's output."""
    section = text_of(page).split(title)[1].split("\n## ")[0]
    script, command, output = re.findall(r"```(?:python|sh)?\n(.*?)```", section, re.DOTALL)
    (tmp_path / "look.py").write_text(script)
    (tmp_path / "kernels").symlink_to(ROOT / "kernels")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = completed(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert output.strip() in done.stdout, done.stdout + done.stderr
    assert last in done.stdout, "and the kernel goes on to its end"


def test_the_code_of_the_first_kernel_is_what_its_files_have() -> None:
    """The page may leave out types and docstrings, but nothing else."""
    blocks = re.findall(r"```(python|c\+\+)\n(.*?)```", text_of("docs/first-kernel.md"), re.DOTALL)
    of_file = {"triton.py": blocks[0], "cuda.cu": blocks[2], "numba.py": blocks[3]}
    for name, (_, shown) in of_file.items():
        code = (ROOT / "kernels" / "vector_add" / name).read_text().splitlines()
        lines = {line.split("  # type:")[0].strip() for line in code}
        missing = [line for line in shown.splitlines() if line.strip() not in lines]
        assert [line for line in missing if not line.startswith("def _add(")] == [], name


def test_the_query_of_registers_against_time_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query of docs/why.md runs on the results in the repository."""
    section = text_of("docs/why.md").split("## A plot of time against registers is one query")[1]
    query = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(query, names)  # the query as docs/why.md has it
    both = names["both"]
    assert len(both) > 0  # type: ignore[arg-type]


def test_the_notebook_of_experiments_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code block of docs/experiments.md runs on the report in the repository."""
    section = text_of("docs/experiments.md").split("## In a notebook")[1]
    (block,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(block, names)  # the code as docs/experiments.md has it
    # The expected texts avoid the middle of the table, which pandas abbreviates.
    assert "attention bfloat16 nvidia-h100" in " ".join(capsys.readouterr().out.split())
    assert ("softmax", "bfloat16", "nvidia-h200") in names["best"].groupby(["kernel", "words", "gpu"]).groups
    assert names["rates"]["cuda"].notna().any()
