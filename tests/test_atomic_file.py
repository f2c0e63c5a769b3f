"""Files that are written whole or not at all."""

import pytest

from dlgs_bench import atomic_file
from dlgs_bench.atomic_file import wait_for_disk, write_atomically

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_readable_for_all(tmp_path, durable):
    path = tmp_path / "file"
    for content in (b"old", b"new"):
        write_atomically(path, content, durable)
        assert path.read_bytes() == content and path.stat().st_mode & 0o777 == 0o644
    wait_for_disk(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    def full(_):
        raise OSError("No space left on device")

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new", durable=True)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
