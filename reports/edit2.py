import glob,re
SUBS = {
"docs/lectures/09_ncu.md": [
 ("On an H200:\n\n| column | means |", "[The report](../../reports/report.md#square) has a line for each that was counted on an H100 and on an H200:\n\n| column | means |"),
 ("| waits most for | the state that a warp spends most cycles in (a *stall*). *Long scoreboard*: it waits for memory. *Not selected*: it could go on, and another warp was chosen |\n| largest hint | the rule of ncu that promises the whole kernel most, and how much |\n| blocks | the size of the grid |\n", "| what limits it | in a sentence, with the state that a warp spends most cycles in (a *stall*). *Long scoreboard*: it waits for memory. *Not selected*: it could go on, and another warp was chosen |\n| est. speedup % | the rule of ncu that promises the whole kernel most, and how much |\n"),
 ("| occupancy %, of possible % |", "| occupancy %, of at most |"),
 ("| sectors a load | sectors of 32 bytes that a warp's load touches: 4 for 4 bytes a thread, 16 for 16 bytes |\n", ""),
 ("On an H200,\nsoftmax in two configurations:\n\n", "On an H200,\nsoftmax was counted in two configurations of `triton_online`, 1024x4w and 4096x8w.\n\n"),
],
"docs/lectures/10_gelu.md": [
 ("Eight launches take nine times as long as one, not eight.", "`manual` is eight launches by torch.profiler ([the report](../../reports/report.md#gelu)). They take nine times as long as\none, not eight."),
],
}
for p, subs in SUBS.items():
    t=open(p).read()
    for a,b in subs:
        if a not in t: print("MISSING",p,repr(a[:60])); continue
        t=t.replace(a,b,1)
    open(p,"w").write(t)
for p in ["README.md",*glob.glob("docs/**/*.md",recursive=True)]:
    t=open(p).read(); o=t
    t=re.sub(r"\[reports/field\.md\]\(((?:\.\./)*)reports/field\.md\)", r"[the report](\1reports/report.md#against-the-field)", t)
    t=re.sub(r"\[reports/history\.md\]\(((?:\.\./)*)reports/history\.md\)", r"[the report](\1reports/report.md#finals-over-commits)", t)
    if t!=o: open(p,"w").write(t); print(p)
