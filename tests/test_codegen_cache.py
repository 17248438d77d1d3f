"""The compile cache under every kind of bad luck: it may cost time, never a wrong result."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from metal_kernels import FMA, POKE

from anvil import codegen, targets
from anvil.codegen import cache

AVX2 = targets.get("x86_64-avx2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of this test's own, and a warning not yet given."""
    monkeypatch.setenv("ANVIL_CACHE", str(tmp_path / "cache"))
    cache._warn_once.cache_clear()
    monkeypatch.setattr(cache, "_unwritten", {})
    return tmp_path / "cache"


class Counter:
    """Makes ``content`` and counts how often it was asked to."""

    def __init__(self, content: bytes = b"content") -> None:
        self.content, self.calls = content, 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.content


def only_entry(directory: Path) -> Path:
    (entry,) = [path for path in directory.rglob("*") if path.is_file()]
    return entry


def test_an_entry_is_made_once() -> None:
    make = Counter()
    assert [cache.get_or_make("ab12", make) for _ in range(3)] == [b"content"] * 3
    assert make.calls == 1


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw[:-1], lambda raw: raw[:10], lambda raw: b"", lambda raw: raw[:-1] + b"!", lambda raw: raw + b"!"],
    ids=["truncated", "cut in the checksum", "emptied", "one byte changed", "one byte more"],
)
def test_a_damaged_entry_is_seen_and_made_again(own_cache: Path, damage) -> None:
    make = Counter()
    cache.get_or_make("ab12", make)
    entry = only_entry(own_cache)
    entry.write_bytes(damage(entry.read_bytes()))
    assert cache.get_or_make("ab12", make) == b"content"
    assert cache.get_or_make("ab12", make) == b"content"
    assert make.calls == 2


def test_a_damaged_kernel_is_compiled_again(own_cache: Path) -> None:
    first = codegen.compile_library([FMA], AVX2)
    for entry in (path for path in own_cache.rglob("*") if path.is_file()):
        entry.write_bytes(entry.read_bytes()[:-7])
    assert codegen.compile_library([FMA], AVX2) == first


def test_a_cache_that_cannot_be_written_warns_once_and_compilation_goes_on(own_cache: Path, caplog) -> None:
    own_cache.write_text("a file where the directory should be")
    library = codegen.compile_library([FMA], AVX2)
    assert codegen.compile_library([POKE, FMA], AVX2).symbols.keys() > library.symbols.keys()
    (message,) = caplog.messages
    assert message.startswith(f"compile cache {own_cache} cannot be written (Not a directory)")
    assert message.endswith("Set ANVIL_CACHE to a writable directory.")


def test_what_could_not_be_written_is_still_made_only_once(own_cache: Path) -> None:
    own_cache.write_text("a file where the directory should be")
    make = Counter()
    assert [cache.get_or_make("ab12", make) for _ in range(3)] == [b"content"] * 3
    assert make.calls == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write to read-only directories")
def test_a_read_only_directory_is_tolerated(own_cache: Path, caplog) -> None:
    own_cache.mkdir()
    own_cache.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert cache.get_or_make("ab12", Counter()) == b"content"
    assert "cannot be written (Permission denied)" in caplog.text


def test_a_full_disk_is_tolerated_and_leaves_nothing_behind(own_cache: Path, monkeypatch, caplog) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", no_space)
    assert cache.get_or_make("ab12", Counter()) == b"content"
    assert "cannot be written (No space left on device)" in caplog.text
    assert [path for path in own_cache.rglob("*") if path.is_file()] == []


def test_many_writers_of_one_entry_agree(own_cache: Path) -> None:
    content = bytes(range(256)) * 4000
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: cache.get_or_make("ab12", Counter(content)), range(32)))
    assert set(results) == {content}
    assert cache.get_or_make("ab12", Counter(b"never made")) == content
    assert only_entry(own_cache).name == "ab12"


def test_a_cached_library_is_read_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    first = codegen.compile_library([FMA, POKE], AVX2)
    monkeypatch.setattr(codegen.build, "_compile", None)
    assert codegen.compile_library([FMA, POKE], AVX2) == first


def test_keys_of_different_lists_differ_even_if_their_text_runs_together() -> None:
    assert len({cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("abc", "")}) == 4
