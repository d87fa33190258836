"""Which edits of C++ and CUDA sources change their tokens, and which don't."""

from pathlib import Path

import pytest

from pipeline.keys.cpp_digest import closure, tokens

SOURCES = {
    "softmax/cuda.cu": r"""// softmax
#include <cmath>
#include "../include/rows.h"
#include "cuda_runtime.h"

#define SCALE (kWidth)
#define WIDE(x) \
  ((x) * 2)  /* a value */

constexpr int kCount = 1'000;
const char* kText = "a // b";
const char* kRaw = R"x(one
  " two \
)" three)x";
__global__ void f(float* x) { x[0] = a + +b; }
void g() { f<<<1, kCount>>>(nullptr); }
""",
    "include/rows.h": '#pragma once\n#include "common.h"\nconstexpr int kWidth = 4;\n',
    "include/common.h": '#pragma once\n#include "rows.h"\nconstexpr char kMark = \'"\';\n',
    "include/other.h": "constexpr int kWidth = 8;\n",
}
CUDA, ROWS, COMMON, OTHER = SOURCES


def planted(folder: Path, file: str = CUDA, old: str = "", new: str = "") -> dict[str, str]:
    """The closure of the sources with one edit, made once."""
    assert old in SOURCES[file]
    for name, text in (SOURCES | {file: SOURCES[file].replace(old, new, 1)}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return closure(folder / CUDA, [folder])


CHANGES = {
    "a name": (CUDA, "x[0]", "y[0]"),
    "a header's token": (ROWS, "kWidth = 4", "kWidth = 8"),
    "a header's header": (COMMON, "kMark = '\"'", "kMark = '!'"),
    "which header": (CUDA, "rows.h", "other.h"),
    "a system's header": (CUDA, "<cmath>", "<math.h>"),
    "a quoted one": (CUDA, "cuda_runtime.h", "cuda.h"),
    "a macro's value": (CUDA, "(kWidth)", "(kWidth + 1)"),
    "a macro that takes an argument": (CUDA, "SCALE (kWidth)", "SCALE(kWidth)"),
    "where a directive ends": (CUDA, "#define SCALE (kWidth)\n", "#define SCALE (kWidth) "),
    "a text that looks like a comment": (CUDA, "a // b", "a // c"),
    "space in a text": (CUDA, "a // b", "a //  b"),
    "space in a raw string": (CUDA, "one\n  ", "one\n"),
    "a backslash in a raw string": (CUDA, "two \\\n", "two \n"),
    "a sign": (CUDA, "a + +b", "a ++b"),
    "a number": (CUDA, "1'000", "1'001"),
    "a prefix of its own": (CUDA, '"a // b"', 'L "a // b"'),
}

STAYS = {
    "a comment": (CUDA, "// softmax", "// softmax, \\\n   in CUDA"),
    "a long comment": (CUDA, "/* a value */", "/* more\n than \" that ' */"),
    "a comment with a quote": (CUDA, "// softmax", '// doesn\'t " matter R"('),
    "indentation": (CUDA, "{ x[0] = a", "{\n\n\tx [ 0 ]=a"),
    "a continued line": (CUDA, "\\\n  ((x)", "((x)"),
    "a continued name": (CUDA, "kCount = ", "kCo\\\nunt = "),
    "space in a directive": (CUDA, "#define SCALE (", "  #  define  SCALE /* is */ ("),
    "line ends of Windows": (CUDA, "\n", "\r\n"),
    "a header that nobody includes": (OTHER, "8", "9"),
}


@pytest.mark.parametrize(("file", "old", "new"), CHANGES.values(), ids=CHANGES)
def test_an_edit_changes_the_digest(tmp_path: Path, file: str, old: str, new: str) -> None:
    assert planted(tmp_path / "before") != planted(tmp_path / "after", file, old, new)


@pytest.mark.parametrize(("file", "old", "new"), STAYS.values(), ids=STAYS)
def test_an_edit_changes_nothing(tmp_path: Path, file: str, old: str, new: str) -> None:
    assert planted(tmp_path / "before") == planted(tmp_path / "after", file, old, new)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("#define F (x)", ["#", "define", "F", " ", "(", "x", ")", "\n"]),
        ("#define F(x) #x", ["#", "define", "F", "(", "x", ")", "#", "x", "\n"]),
        ("#define F/**/(x)", ["#", "define", "F", " ", "(", "x", ")", "\n"]),
        ("/* */ # if 0 // x\nf (x)", ["#", "if", "0", "\n", "f", "(", "x", ")"]),
        ("1'000.5e-3f+0x1'Fp-2", ["1'000.5e-3f", "+", "0x1'Fp-2"]),
        ("u8\"a\\\"b\"_s '\\'' L'\"'", ['u8"a\\"b"_s', "'\\''", "L'\"'"]),
        ('uR"(a)b)" FOOR"(a)"', ['uR"(a)b)"', "FOOR", '"(a)"']),
        ('R"x(\\\n)y)x"', ['R"x(\\\n)y)x"']),
        ("f<<<a>>>(b->*c)...", ["f", "<<<", "a", ">>>", "(", "b", "->*", "c", ")", "..."]),
        ("#error don't\nx", ["#", "error", "don", "'", "t", "\n", "x"]),
    ],
)
def test_tokens(text: str, read: list[str]) -> None:
    assert tokens(text) == read


def test_what_is_included_lies_in_a_root(tmp_path: Path) -> None:
    assert list(planted(tmp_path)) == [COMMON, ROWS, CUDA]
    assert list(closure(tmp_path / CUDA, [tmp_path / "softmax"])) == ["cuda.cu"]
    assert list(closure(tmp_path / CUDA, [tmp_path / "softmax", tmp_path])) == ["cuda.cu", COMMON, ROWS]


def test_equal_paths_in_two_roots_stay_apart(tmp_path: Path) -> None:
    for root, text in (("here", '#include "../there/f.h"\n#include "g.h"\n'), ("there", "int x;\n")):
        (tmp_path / root).mkdir()
        (tmp_path / root / "f.h").write_text(text)
    (tmp_path / "there" / "g.h").write_text("int y;\n")
    roots = [tmp_path / "here", tmp_path / "there"]
    assert list(closure(tmp_path / "here" / "f.h", roots)) == ["f.h", "g.h", "there/f.h"]


def test_a_source_in_no_root(tmp_path: Path) -> None:
    planted(tmp_path)
    with pytest.raises(LookupError, match=r"cuda\.cu is outside of the folders"):
        closure(tmp_path / CUDA, [tmp_path / "include"])


def test_an_include_in_angle_brackets_is_looked_for_in_the_roots_alone(tmp_path: Path) -> None:
    """As by ``-I``, which is how a kernel outside of the repository includes its headers."""
    for name, text in {
        "kernel/k.cu": "#include <ours.h>\n#include <cmath>\n#include <beside.h>\n# include <sub/more.h>\n",
        "kernel/beside.h": "int beside;\n",
        "include/ours.h": "int ours;\n",
        "include/sub/more.h": "int more;\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = closure(tmp_path / "kernel" / "k.cu", [tmp_path, tmp_path / "include"])
    assert list(found) == ["include/ours.h", "include/sub/more.h", "kernel/k.cu"]
