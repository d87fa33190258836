"""SASS, PTX and occupancy: read from the tools' text, counted, and held against NVIDIA's own numbers."""

import pytest

from pipeline.inspection import ptx, sass
from pipeline.inspection.listing import of_sass
from pipeline.inspection.occupancy import occupancy
from pipeline.inspection.sources import REPOSITORY, SourceLine

TEXT = """
	.section	.text.first,"ax",@progbits
	//## File "/usr/include/math.hpp", line 924 inlined at "/somewhere/kernels/tiny/cuda.cu", line 7
	//## File "/somewhere/kernels/tiny/cuda.cu", line 7
        /*0000*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0010*/                   LDG.E.U16 R8, desc[UR4][R2.64] ;
        /*0020*/                   LDG.E R8, desc[UR4][R2.64] ;
        /*0030*/                   LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;
        /*0040*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*0050*/                   FFMA R0, R4, R5, R6 ;
        /*0060*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0070*/                   MUFU.EX2 R0, R0 ;
        /*0080*/                   SHFL.BFLY PT, R3, R0, 0x10, 0x1f ;
        /*0090*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a0*/                   STS.64 [R2], R4 ;
        /*00b0*/                   STL.128 [R1], R4 ;
        /*00c0*/                   LDL R4, [R1] ;
        /*00d0*/              @P1  STG.E.64 desc[UR4][R2.64], R4 ;
        /*00e0*/                   EXIT ;
.L_x_1:
        /*00f0*/                   BRA `(.L_x_1);
        /*0100*/                   NOP;
	.section	.text.second,"ax",@progbits
        /*0000*/                   EXIT ;
"""


def test_instructions_are_counted_by_kind() -> None:
    first, second = sass.parse(TEXT)
    assert (first.symbol, second.symbol) == ("first", "second")
    counted = {name: value for name, value in sass.mix(first.instructions).to_dict().items() if value}
    assert counted == {
        "instructions": 15,  # what stands behind EXIT only fills up
        "global_loads_128": 2,
        "global_loads_32": 1,
        "global_loads_narrow": 1,
        "global_stores_64": 1,
        "predicated": 2,
        "shared_stores": 1,
        "local_loads": 1,
        "local_stores": 1,
        "spill_load_bytes": 4,
        "spill_store_bytes": 16,
        "fma": 1,  # an HFMA2 that makes a constant is none
        "special": 1,
        "exchanges": 1,
        "barriers": 1,
        "tensor_core": 1,
    }


def test_an_inlined_instruction_belongs_to_the_kernels_own_line() -> None:
    first, second = sass.parse(TEXT)
    assert first.instructions[0].line == SourceLine("/somewhere/kernels/tiny/cuda.cu", 7)
    assert second.instructions[0].line is None


def test_text_without_code_is_refused() -> None:
    with pytest.raises(ValueError, match="no SASS"):
        sass.parse("nothing of the kind")


@pytest.mark.parametrize(
    ("architecture", "registers", "shared", "threads", "blocks", "share", "limit"),
    [
        # As the occupancy calculator of the CUDA toolkit has it.
        ("80", 32, 0, 1024, 2, 1.0, "registers and warps"),
        ("80", 33, 0, 1024, 1, 0.5, "registers"),
        ("90", 40, 0, 256, 6, 0.75, "registers"),
        ("90", 16, 0, 32, 32, 0.5, "blocks"),
        ("90", 16, 48 * 1024, 128, 4, 0.25, "shared memory"),
        ("90a", 255, 0, 256, 1, 0.125, "registers"),
        ("89", 16, 0, 1024, 1, 32 / 48, "warps"),
        ("90", 16, 256 * 1024, 128, 0, 0.0, "shared memory"),
    ],
)
def test_occupancy(
    architecture: str, registers: int, shared: int, threads: int, blocks: int, share: float, limit: str
) -> None:
    found = occupancy(architecture, registers, shared, threads)
    assert found is not None
    assert (found.blocks_per_sm, found.occupancy, found.limited_by) == (blocks, share, limit)


def test_an_architecture_that_is_not_known_has_no_occupancy() -> None:
    assert occupancy("70", 32, 0, 128) is None


MODULE = """
.version 9.0
.target sm_90
.visible .entry scale(
	.param .u64 .ptr .global .align 1 scale_param_0,
	.param .u32 scale_param_1
)
.reqntid 128
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<20>;
	.loc	2 24 5, function_name $info, inlined_at 1 8 1
	ld.param.u64 	%rd1, [scale_param_0];
	.loc	1 9 1
	@!%p2 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	ld.global.nc.v2.f32 {%f1, %f2}, [%rd1];
	ld.global.u16 %rs1, [%rd1];
	st.shared.b64 [%r9], %rd7;
	.loc	1 0 0
	shfl.sync.bfly.b32 	%r9, %r8, 16, 31, -1;
	ret;
}
	.file	1 "/somewhere/kernels/tiny/triton.py"
	.file	2 "/usr/lib/site-packages/triton/language/standard.py"
"""


def test_what_triton_inlined_belongs_to_the_line_that_called_it() -> None:
    """Triton names the callers in a comment; a name that several files have tells nothing."""
    places = """	.loc	2 191 40                        // standard.py:191:40 @[ triton.py:28:36 ]
	max.f32 %r1, %r2, %r3;
	.loc	2 170 27                        // standard.py:170:27 @[ standard.py:191:40 @[ triton.py:28:36 ] ]
	max.f32 %r1, %r2, %r3;
	.loc	2 293 36                        // standard.py:293:36
	add.f32 %r1, %r2, %r3;
	ret;
"""
    module = MODULE.replace("	.loc	1 9 1\n", places, 1)
    *_, first, second, third, _ = ptx.parse(module)["scale"].body[:5]
    assert first.line == second.line == SourceLine("/somewhere/kernels/tiny/triton.py", 28)
    assert third.line == SourceLine("/usr/lib/site-packages/triton/language/standard.py", 293)
    twice = module + '	.file	3 "/elsewhere/triton.py"\n'
    assert ptx.parse(twice)["scale"].body[1].line == SourceLine(
        "/usr/lib/site-packages/triton/language/standard.py", 191
    )


def test_machine_code_says_that_it_does_not_know_the_caller() -> None:
    (first, *_) = sass.parse(TEXT)
    assert of_sass(first.instructions, REPOSITORY)[0] == ""
    inlined = TEXT.replace("/somewhere/kernels/tiny/cuda.cu", "/x/site-packages/triton/language/standard.py")
    (first, *_) = sass.parse(inlined)
    assert of_sass(first.instructions, REPOSITORY)[0].startswith(
        "(code inlined from triton/language/standard.py "
    )


def test_ptx_entries_say_what_they_declare_load_and_exchange() -> None:
    entry = ptx.parse(MODULE)["scale"]
    assert (entry.parameters, entry.directives) == (("u64", "u32"), (".reqntid 128",))
    assert entry.registers == {"pred": 2, "b32": 19}
    notes = [ptx.note(statement) for statement in entry.body]
    assert notes == [
        "",
        "global load of 16 bytes per thread, only where %p2 is false",
        "global load of 8 bytes per thread",
        "global load of 2 bytes per thread",
        "shared store of 8 bytes per thread",
        "reduction: exchange within the warp",
        "",
    ]
    lines = [statement.line and statement.line.number for statement in entry.body]
    assert lines == [8, 9, 9, 9, 9, None, None]


@pytest.mark.parametrize(
    ("directives", "threads"),
    [
        (".reqntid 128", 128),
        (".maxntid 16, 8, 2\n.minnctapersm 2", 256),
        (".maxntid 1024", 1024),
        (".minnctapersm 2", None),
    ],
)
def test_launch_bounds_say_the_most_threads_of_a_block(directives: str, threads: int | None) -> None:
    entry = ptx.parse(MODULE.replace(".reqntid 128", directives))["scale"]
    assert entry.most_threads == threads
