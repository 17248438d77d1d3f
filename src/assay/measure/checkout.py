"""Two states of the project side by side, each a plain folder of its tracked files."""

from __future__ import annotations

import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from assay.cache import cached
from assay.errors import UsageError

WORKING_TREE = "working tree"


@dataclass(frozen=True)
class Checkout:
    """A commit, and a folder with its files."""

    commit: str
    tree: Path


def checkout(root: Path, revision: str) -> Checkout:
    """The files of ``revision`` of the repository at ``root``.

    :data:`WORKING_TREE` means the tracked files as they are now. Folders are kept, and their paths have equal lengths,
    which otherwise would be one more difference between two builds.

    Raises :class:`UsageError` for an unknown revision, outside a git checkout, and without git.
    """
    commit = _snapshot(root) if revision == WORKING_TREE else _commit(root, revision)
    return Checkout(commit, cached(f"checkouts/{commit[:16]}", lambda place: _extract(root, commit, place)))


def _snapshot(root: Path) -> str:
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return _git(root, "stash", "create") if changed else _commit(root, "HEAD")


def _commit(root: Path, revision: str) -> str:
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise UsageError(
            f"looking for revision={revision!r} in {root}: git knows no such commit; fetch it, or name another"
        ) from error


def _git(root: Path, *arguments: str) -> str:
    try:
        return subprocess.run(("git", *arguments), cwd=root, check=True, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError as error:
        raise UsageError("comparing two revisions needs git, which is not installed") from error


def _extract(root: Path, commit: str, place: Path) -> None:
    archive = subprocess.run(("git", "archive", commit), cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        files.extractall(place)
