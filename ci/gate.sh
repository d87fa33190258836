#!/bin/sh
# Compare a change with the commit that it starts from, and write a comment for its pull request. Exits with the
# exit code of `python -m pipeline.compare`. Set in the environment:
#
#   GATE_BASE        the branch or commit that the change is for
#   GATE_HEAD        the change's commit; default HEAD
#   GATE_REPOSITORY  the checkout that holds both; default: the one of this file
#   GATE_KERNEL      a kernel's folder in that checkout (with a /), a kernel's name, or all; default all
#   GATE_OPTIONS     more options of compare, as by=2% at_most=10m undecided=pass
#   GATE_OUTPUT      the folder for every round's samples and comment.md; default outputs/gate
#   GATE_PYTHON      a Python that has the packages; default that of `make setup`
#   GATE_LINK        the address of the job, for the comment
set -u
pipeline=$(cd "$(dirname "$0")/.." && pwd)
repository=$(cd "${GATE_REPOSITORY:-$pipeline}" && pwd) || exit 2
output=${GATE_OUTPUT:-outputs/gate}
mkdir -p "$output" || exit 2
output=$(cd "$output" && pwd)
kernel=${GATE_KERNEL:-all}
case $kernel in */*) kernel=$repository/$kernel ;; esac
if ! head=$(git -C "$repository" rev-parse --verify --quiet "${GATE_HEAD:-HEAD}^{commit}") ||
	! base=$(git -C "$repository" merge-base "$GATE_BASE" "$head"); then
	echo "error: $repository does not hold $GATE_BASE, ${GATE_HEAD:-HEAD} and their history: fetch all of it (fetch-depth: 0)" >&2
	exit 2
fi

cd "$pipeline" || exit 2
# shellcheck disable=SC2086 # several options
"${GATE_PYTHON:-$pipeline/.venv/bin/python}" -m pipeline.compare "kernel=$kernel" "a=$base" "b=$head" format=markdown \
	"output=$output" tracking=none ${GATE_OPTIONS:-} >"$output/tables.md" 2>"$output/errors.txt"
code=$?
cat "$output/errors.txt" >&2
case $code in
0) verdict='no regression' ;;
1) verdict='a regression' ;;
3) verdict='undecided' ;;
*) verdict='the comparison could not be made' ;;
esac
{
	printf '### Kernel times: %s\n\n' "$verdict"
	sed 's/^/> /' "$output/errors.txt"
	printf '\n'
	cat "$output/tables.md"
	printf '\na is %s, b is %s, measured side by side in rounds.' "$base" "$head"
	[ -z "${GATE_LINK:-}" ] || printf ' [The job, with every sample](%s).' "$GATE_LINK"
	printf '\n'
} >"$output/comment.md"
cat "$output/comment.md"
exit $code
