import sys,re,textwrap
W=108
for f in sys.argv[1:]:
    lines=open(f).read().split('\n')
    i=0
    while i<len(lines):
        if len(lines[i])>110:
            l=lines[i]
            ind=len(l)-len(l.lstrip())
            s=i; 
            def plain(x): return x.strip() and (len(x)-len(x.lstrip()))==ind
            while s>0 and plain(lines[s-1]) and '"""' not in lines[s] : s-=1
            # find start: line with opening quotes or first line in paragraph
            if lines[s].lstrip().startswith('#'):
                pass
            e=i
            while e+1<len(lines) and plain(lines[e+1]) and not lines[e].rstrip().endswith('"""'): e+=1
            para=lines[s:e+1]
            text=' '.join(x.strip() for x in para)
            if '"""' not in ''.join(para) and not any('"""' in x for x in lines[max(0,s-30):s]): i+=1; continue
            lines[s:e+1]=textwrap.wrap(text,W,initial_indent=' '*ind,subsequent_indent=' '*ind,break_long_words=False,break_on_hyphens=False)
            i=s
        i+=1
    open(f,'w').write('\n'.join(lines))
