"""A program that answers as ncu does: it hands out the recorded pages."""

from pathlib import Path

PAGES = Path(__file__).parent / "ncu"


def fake(
    folder: Path, version: str = "2025.3.1.0", does: str = 'touch "$report.ncu-rep"', pages: Path = PAGES
) -> Path:
    """A program in place of ncu: its version, its report (what ``does`` makes of it), and its pages, of which
    one that is not there is one that it can't show."""
    program = folder / "bin" / "ncu"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"""#!/bin/sh
echo "$@" >>'{folder}/calls'
report=
for word in "$@"; do
  [ "$last" = --export ] && report=$word
  case "$last $word" in
    *--version) echo 'NVIDIA (R) Nsight Compute'; echo 'Version {version} (build 1)'; exit ;;
    '--page raw') cat '{pages}/recorded.raw.csv'; exit ;;
    '--page details') cat '{pages}/recorded.details.csv'; exit ;;
  esac
  last=$word
done
{does}
"""
    )
    program.chmod(0o755)
    return program
