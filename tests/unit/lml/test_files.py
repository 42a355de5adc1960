"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from mpt_lml import files


def write(path: Path, text: str) -> None:
    with files.replacing(path) as partial:
        partial.write_text(text)


def test_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "result"
    write(path, "whole")
    with files.replacing(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "whole"  # until all is written
        assert partial.parent == path.parent  # one file system: the replacement is one step
        other = path.stat().st_ino
    assert path.read_text() == "half"
    assert path.stat().st_ino != other
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "result"
    write(path, "whole")
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files here")
def test_a_written_file_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(4):
        write(tmp_path / "a.json", "{}")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.bad_input
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / "full"
    path.symlink_to("/dev/full")  # a fault in the code replaces the link, and not the device
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write(path, "{}")
    assert path.is_symlink()


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    """And its name is there before anybody is told: a loss of power leaves the old or the new."""
    path, done = tmp_path / "result.json", []
    sync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        done.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", path.exists()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda *a: (done.append("renamed"), replace(*a))[1])
    write(path, "a word")
    assert done == [("file", False), "renamed", ("folder", True)]


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe holds a few words without a reader
    try:
        write(path, "a word")
        assert os.read(reader, 100) == b"a word"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_link_stays_one_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    for content in ("one", "two"):  # into a file that is not there yet, and one that is
        write(link, content)
        assert link.is_symlink()
        assert (tmp_path / "file").read_text() == content


@pytest.mark.bad_input
def test_a_folder_that_cannot_be_written_is_found_by_writing() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no folder that refuses also the superuser")
    with pytest.raises(PermissionError, match="cannot write to the output folder /proc/self"):
        files.require_writable("/proc/self")


def test_an_error_of_something_else_keeps_its_words(tmp_path: Path) -> None:
    """A hub that hangs up while a file is being written says nothing about the file."""
    path = tmp_path / "result"
    with pytest.raises(ConnectionResetError) as caught, files.replacing(path):
        raise ConnectionResetError(errno.ECONNRESET, "reset by peer")
    assert str(path) not in str(caught.value)


def test_an_unwritable_folder_is_named_before_the_work(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PermissionError, match="cannot write to the output folder"):
        files.require_writable(file / "folder")
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="--out"):
            files.require_writable(tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([[1.5, -2.0]])},
        {"a": torch.tensor([1.5, -2.0]).view(torch.int32)},
        {"b": torch.tensor([1.5, -2.0])},
    ],
    ids=["shape", "type", "name"],
)
def test_the_same_bytes_are_another_tensor_in_another_form(other: dict) -> None:
    assert files.digest("", other) != files.digest("", {"a": torch.tensor([1.5, -2.0])})
