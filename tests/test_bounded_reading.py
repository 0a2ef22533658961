import pytest

from trl_consistency.bounded_reading import read_at_most


def test_what_is_read(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffé\r\nb\rc\n".encode())
    assert read_at_most(file, 100, "utf-8-sig") == "é\nb\nc\n" == file.read_text("utf-8-sig")
    size = file.stat().st_size
    assert read_at_most(file, size)
    for large in (file, "/dev/zero"):
        with pytest.raises(OSError, match=f"it has more than {size - 1} bytes"):
            read_at_most(large, size - 1)
    with pytest.raises(FileNotFoundError):
        read_at_most(tmp_path / "gone", 9)
