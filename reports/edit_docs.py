import re, glob
REMOVE = "floor grid plans against dispatched sustained steps map configurations launches counters traffic best".split()
report = {"docs/kernels": "../../reports/report.md", "docs/lectures": "../../reports/report.md"}
def block(text, begin):
    """Span of block whose marker starts with begin."""
    at = text.index(begin); end = text.index("<!-- end -->", at) + len("<!-- end -->")
    return at, end
def drop_all(text):
    for kind in REMOVE:
        while (m := re.search(rf"^<!-- figures: {kind}\b.*?<!-- end -->\n+", text, re.M | re.S)):
            text = text[: m.start()] + text[m.end():]
    return text
def to_finals(text):
    def of(m):
        words = [w for w in m[1].split() if not w.startswith(("each=", "mean=", "provider="))]
        return f"<!-- figures: finals {' '.join(words)} -->"
    return re.sub(r"^<!-- figures: ratios (.*?) -->$", of, text, flags=re.M)
SUBS = {
"docs/kernels/attention.md": [
 ("everything ([figures](#figures)). ncu counts what goes to and from device memory, without a mask:\n\n", "everything ([figures](#figures)). ncu counts what goes to and from device memory, without a mask.\n"),
 ("bytes are its limit:\n", "bytes are its limit.\n"),
 ("once. Long sequences are limited by their operations:\n", "once. Long sequences are limited by their operations.\n"),
 ("Asked were figures of an H200. The other GPU has ceilings of its own, so ratios are compared there, and no times. Forward,\nby finals:\n", "Forward, by finals:\n"),
 ("By the sweeps, with the problems and providers that have no finals:\n\n", ""),
 ("After two seconds of the same work:\n\n", ""),
 ("Decoding, of which 90 % of the copy ceiling was asked:\n", "Decoding:\n"),
 ("What Nsight Compute counts, a line for each kernel that a call launches:\n\n", "[The report](../../reports/report.md#attention) has the rounds, the times after two seconds of the same work, and what\nNsight Compute counts.\n\n"),
],
"docs/kernels/attention_backward.md": [
 ("papers count so. Each input is read once, each output is written\n", "papers count so. Each input is read once, each output is written\n"),
 ("papers count so. Each input is read once, each output is written once.\n\n", "papers count so. Each input is read once, each output is written once.\n\n"),
 ("Asked was the speed of SDPA's FlashAttention-2. By finals:\n", "By finals:\n"),
 ("By the sweeps, with the problems and providers that have no finals:\n\n", ""),
 ("After two seconds of the same work:\n\n", ""),
 ("What Nsight Compute counts, a line for each kernel that a call launches:\n\n", "[The report](../../reports/report.md#attention_backward) has the rounds, the times after two seconds of the same work,\nand what Nsight Compute counts.\n\n"),
],
"docs/kernels/gelu.md": [
 ("float32 rate of a large matrix product. Both rates are measured on the same machine:\n", "float32 rate of a large matrix product. Both rates are measured on the same machine.\n"),
 ("The fastest provider at each problem:\n\n", ""),
],
"docs/kernels/layernorm.md": [
 ("and the operations at the float32 rate of a large matrix product. Both rates are measured on the same machine:\n", "and the operations at the float32 rate of a large matrix product. Both rates are measured on the same machine.\n"),
 ("The fastest provider at each problem. An extent of one number is the columns of 4096 rows:\n\n", "An extent of one number is the columns of 4096 rows. "),
 ("By which plan `cuda` is the fastest. The H200's rows are of before rows said what was launched:\n\n", ""),
 ("### Against others\n\n`torch_compile` is ahead", "### Against others\n\n`torch_compile` is ahead"),
 ("there. By finals, side by side, with a verdict for each ratio where there were two rounds:\n", "there. By finals, side by side, with a verdict for each ratio where there were two rounds:\n"),
],
"docs/kernels/matmul.md": [
 ("The ladder of the problem at which the most providers were measured:\n\n![matmul: every provider at one problem](../../reports/ladder/matmul.svg)\n\nAnd what each step gives at m = n = k = 4096 in bfloat16:\n\n", "What each step takes at m = n = k = 4096 in bfloat16:\n\n<!-- figures: providers kernel=matmul workload=quick m=[4096] dtype=[bfloat16] provider=[cuda_naive,cuda_tiled,triton_naive,triton_tiled,triton_persistent,cuda_wgmma,torch] -->\n<!-- end -->\n\n"),
 ("same arithmetic. Both rates are measured on the same machine. A large product is limited by its operations:\n", "same arithmetic. Both rates are measured on the same machine. A large product is limited by its operations.\n"),
 ("What Nsight Compute counts of the fastest and of cuBLAS:\n\n", "What Nsight Compute counts of the fastest and of cuBLAS is in [the report](../../reports/report.md#matmul).\n\n"),
 ("Asked were figures of an H200. The other GPU has ceilings of its own, so a share is compared there, and no time. The tables\nare of finals in burst where nothing else is said. `triton_persistent` was asked to reach 0.9 of cuBLAS from 2048 on: where\nit is not our fastest, its column says how far behind that it is.\n", "By finals, in burst.\n"),
 ("A long k, and an odd problem beside its aligned neighbour, of whose rate 0.8 was asked:\n", "A long k, and an odd problem beside its aligned neighbour:\n"),
 ("Float8, of which 0.95 of torch's `_scaled_mm` was asked:\n", "Float8:\n"),
 ("tf32, of which nothing was asked:\n", "tf32:\n"),
 ("And after two seconds of the same work:\n\n", "[The report](../../reports/report.md#matmul-on-nvidia-h100-80gb-hbm3) has the times after two seconds of the same work.\n"),
 ("The fastest provider at each problem:\n\n", ""),
],
"docs/kernels/matmul_int4.md": [
 ("2 m n k operations, and n k / 2 bytes of weights, with 4 bytes for each scale and its zero:\n", "2 m n k operations, and n k / 2 bytes of weights, with 4 bytes for each scale and its zero.\n"),
 ("call. At one row 0.9 of the best peer's time was asked, which is 1.11 times its speed:\n", "call.\n"),
 ("At 16 and 64 rows the speed of the product in 16 bits was asked, and from 256 on 0.8 of it:\n\n", ""),
 ("After two seconds of the same work:\n\n", ""),
 ("What Nsight Compute counts at 256 rows:\n\n", "[The report](../../reports/report.md#matmul_int4) has the times after two seconds of the same work, and what Nsight\nCompute counts.\n\n"),
 ("Which provider is the fastest where, and the time of the product in 16 bits over its own. The sweep is\n`python -m pipeline.sweep kernel=matmul_int4 workload=map preset=quick`, which has no gemlite:\n\n", "`python -m pipeline.sweep kernel=matmul_int4 workload=map preset=quick` measures which provider is the fastest where.\n\n"),
],
"docs/kernels/matmul_sparse.md": [
 ("m n k operations; n k bytes of values in 16 bits, and n k / 8 bytes of metadata:\n", "m n k operations; n k bytes of values in 16 bits, and n k / 8 bytes of metadata.\n"),
 ("After two seconds of the same work:\n\n", ""),
 ("What Nsight Compute counts at 4096:\n\n", "[The report](../../reports/report.md#matmul_sparse) has the times after two seconds of the same work, and what Nsight\nCompute counts.\n\n"),
],
"docs/kernels/rmsnorm.md": [
 ("operations at the float32 rate of a large matrix product. Both rates are measured on the same machine:\n", "operations at the float32 rate of a large matrix product. Both rates are measured on the same machine.\n"),
 ("([why.md](../why.md#what-limits-the-row-kernels) has more sizes on an H200). At 16384 columns:\n", "([why.md](../why.md#what-limits-the-row-kernels) has more sizes on an H200).\n"),
 ("The fastest provider at each problem. An extent of one number is the columns of 4096 rows:\n\n", "An extent of one number is the columns of 4096 rows. "),
 ("By which plan `cuda` is the fastest. The H200's rows are of before rows said what was launched:\n\n", ""),
],
"docs/kernels/softmax.md": [
 ("the operations at the float32 rate of a large matrix product. Both rates are measured on the same machine (`python -m\npipeline.ceilings`). The bytes win everywhere:\n", "the operations at the float32 rate of a large matrix product. Both rates are measured on the same machine (`python -m\npipeline.ceilings`). The bytes win everywhere.\n"),
 ("([why.md](../why.md#what-limits-the-row-kernels) has more sizes on an H200). At 16384 columns:\n", "([why.md](../why.md#what-limits-the-row-kernels) has more sizes on an H200).\n"),
 ("The fastest provider at each problem. An extent of one number is the columns of 4096 rows:\n\n", "An extent of one number is the columns of 4096 rows. "),
 ("By which plan `cuda` is the fastest. The H200's rows are of before rows said what was launched:\n\n", ""),
],
"docs/kernels/sparsify.md": [
 ("2 n k bytes are read. `prune` writes as many, the others 9/16 of it:\n", "2 n k bytes are read. `prune` writes as many, the others 9/16 of it.\n"),
 ("The other steps and sizes, by the sweeps:\n\n", ""),
],
"docs/kernels/square.md": [
 ("product. Both rates are measured on the same machine:\n", "product. Both rates are measured on the same machine.\n"),
 ("The fastest provider at each problem:\n\n", ""),
],
"docs/kernels/vector_add.md": [
 ("What a call launches, and what it costs the device and the host (`python -m pipeline.profile kernel=vector_add`). Numba\nlooks at every argument in Python: a launch costs the host about four times what one of `cuda` or `triton` does. The profiler's own cost is in all of them. The time in the table above does not hold any of it, since it is that\nof a CUDA graph:\n\n", "`python -m pipeline.profile kernel=vector_add` says what a call costs the device and the host. Numba looks at every\nargument in Python: a launch costs the host about four times what one of `cuda` or `triton` does. The times in the\ntable do not hold any of it, since they are those of a CUDA graph.\n"),
],
"docs/tuned.md": [
 ("less than a default's. Finals of those widths say what callers get over the fastest of ours, in geometric mean and at most:\n\n", "less than a default's. What callers get over the fastest of ours is in\n[the report](../reports/report.md#against-the-field), for each kernel and machine.\n\n"),
],
"docs/lectures/02_profiler.md": [
 ("sentence says which kernels were launched, too. On an H200:\n\n", "sentence says which kernels were launched, too. [The report](../../reports/report.md#square) has those of an H100 and an\nH200.\n\n"),
],
"docs/lectures/06_block_size.md": [
 ("`kernels/square/triton.py`. `triton_row` is a program a row. On an H200:\n\n", "`kernels/square/triton.py`. `triton_row` is a program a row.\n\n"),
 ("`4w` is `num_warps=4`: 128 threads a program. At 1024 columns the two do the same, and take the same time. At 16384 the\n", "`python -m pipeline.sweep kernel=square provider=[triton_row,triton_flat]` shows them. `4w` is `num_warps=4`: 128 threads\na program. On an H200 at 1024 columns the two do the same, and take the same time. At 16384 the\n"),
],
"docs/lectures/10_gelu.md": [
 ("intermediate values stay in registers.\n\nOn an H200:\n\n", "intermediate values stay in registers.\n\n"),
],
}
for p in ['docs/tuned.md',*sorted(glob.glob('docs/lectures/*.md')),*sorted(glob.glob('docs/kernels/*.md'))]:
    text = open(p).read(); old = text
    text = to_finals(drop_all(text))
    for a, b in SUBS.get(p, []):
        if a not in text: print("MISSING", p, repr(a[:70])); continue
        text = text.replace(a, b, 1)
    if text != old: open(p, "w").write(text)
