"""Prints how large each package of the project is, and fails when a module has grown past what one sitting can read.

Usage: python ci/size_report.py [--limit 400] [--all]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TALK_AT = 250  # printed from here on: the next one to touch the module should think of splitting it


def tracked_modules(root: Path) -> list[Path]:
    """Python, C and header files that git tracks under ``root``, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.c", "*.h", "*.inc"], cwd=root, check=True, capture_output=True, text=True
    )
    return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def line_counts(modules: list[Path], root: Path) -> dict[str, int]:
    """Lines of each module, by its path relative to ``root``."""
    return {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in modules}


def package_of(path: str) -> str:
    """``src/anvil/kernels/linear.py`` -> ``src/anvil/kernels``; a top-level module stands for itself."""
    return str(Path(path).parent) if "/" in path else path


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=400, help="most lines a module may have")
    parser.add_argument("--all", action="store_true", help="print every module, not only the large ones")
    options = parser.parse_args(arguments)

    counts = line_counts(tracked_modules(root), root)
    totals: dict[str, list[int]] = defaultdict(list)
    for path, lines in counts.items():
        totals[package_of(path)].append(lines)
    print(f"{'lines':>6} {'modules':>8} {'largest':>8}")
    for package, lines in sorted(totals.items()):
        print(f"{sum(lines):6} {len(lines):8} {max(lines):8}  {package}")
    print(f"{sum(counts.values()):6} {len(counts):8}           in all")

    for path, lines in sorted(counts.items(), key=lambda item: -item[1]):
        if options.all or lines > TALK_AT:
            print(f"{lines:6}  {path}")
    too_long = {path: lines for path, lines in counts.items() if lines > options.limit}
    for path, lines in too_long.items():
        print(f"size_report: {path} has {lines} lines, the limit is {options.limit}: split it", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    raise SystemExit(main())
