import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_pipeline.errors import UserError
from kernel_pipeline.machine.device import Device
from kernel_pipeline.machine.lock import DeviceLock

ROOT = Path(__file__).parents[3]
CPU = Device(kind="cpu", name="Planted CPU")

HOLD = (
    "import sys; from kernel_pipeline.machine.device import Device\n"
    "from kernel_pipeline.machine.lock import DeviceLock\n"
    "with DeviceLock(Device(kind='cpu', name='Planted CPU'), None, print):\n"
    "    print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def silent(text: str) -> None:
    raise AssertionError(f"said without a reason: {text}")


def hold(folder: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_holder_at_a_time_who_is_named(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        with pytest.raises(
            UserError, match=rf"^process {holder.pid} \(.*\) is still measuring on Planted CPU;"
        ):
            DeviceLock(CPU, 0, silent).__enter__()
        # Other devices can be measured meanwhile.
        with DeviceLock(Device(kind="cuda", name="GPU", index=0, uuid="GPU-1"), 0, silent):
            pass
        assert holder.stdin is not None
        holder.stdin.close()
        said: list[str] = []
        with DeviceLock(CPU, None, said.append):
            assert len(said) <= 1
    with DeviceLock(CPU, 0, silent), pytest.raises(UserError, match=rf"process {os.getpid()} "):
        DeviceLock(CPU, 0, silent).__enter__()
    with DeviceLock(CPU, 0, silent):
        pass


def test_what_times_nothing_shares_a_device_with_its_like_alone(tmp_path: Path) -> None:
    one, other = (DeviceLock(CPU, 0, silent, shared=True) for _ in range(2))
    with one, other, pytest.raises(UserError, match="is still measuring on"):
        DeviceLock(CPU, 0, silent).__enter__()
    with hold(tmp_path), pytest.raises(UserError, match="is still measuring on"):
        DeviceLock(CPU, 0, silent, shared=True).__enter__()
    with DeviceLock(CPU, 0, silent):
        pass


def test_no_lock_outlives_its_process(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with DeviceLock(CPU, 0, silent):
            pass


def test_the_lock_lies_where_only_this_user_writes_and_names_no_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pipeline/sweep.py", "tracking.uri=https://me:secret@host"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pipeline.sweep", *sys.argv[1:]])
    tmp_path.chmod(0o1777)
    with DeviceLock(CPU, 0, silent) as lock:
        assert lock.path.read_text() == f"process {os.getpid()} (sweep)\n"
        assert (lock.path.stat().st_mode & 0o777, lock.path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("of", ["file", "folder"])
def test_a_planted_link_is_not_followed(tmp_path: Path, of: str) -> None:
    with DeviceLock(CPU, 0, silent) as lock:
        path = lock.path
    target = tmp_path / "precious"
    path.unlink()
    if of == "file":
        target.write_text("precious")
        path.symlink_to(target)
    else:
        path.parent.rmdir()
        target.mkdir()
        path.parent.symlink_to(target)
    with pytest.raises(UserError, match="remove it"):
        DeviceLock(CPU, 0, silent).__enter__()
    assert target.read_text() == "precious" if of == "file" else not list(target.iterdir())


def test_what_others_could_write_is_refused(tmp_path: Path) -> None:
    """The cases are a hard link to another file, a pipe, a folder that everybody can write, and another
    user's folder."""
    with DeviceLock(CPU, 0, silent) as lock:
        path = lock.path
    (tmp_path / "precious").write_text("precious")
    path.unlink()
    path.hardlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="not a regular file that you own"):
        DeviceLock(CPU, 0, silent).__enter__()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file that you own"):
        DeviceLock(CPU, 0, silent).__enter__()
    path.unlink()
    path.parent.chmod(0o777)
    with pytest.raises(UserError, match="not a folder that you own"):
        DeviceLock(CPU, 0, silent).__enter__()
    if os.geteuid() == 0:
        path.parent.chmod(0o700)
        os.chown(path.parent, 12345, 12345)
        with pytest.raises(UserError, match="not a folder that you own"):
            DeviceLock(CPU, 0, silent).__enter__()
    assert (tmp_path / "precious").read_text() == "precious"
