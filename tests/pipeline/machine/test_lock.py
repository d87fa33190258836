from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import UserError
from pipeline.machine.device import Device
from pipeline.machine.lock import DeviceLock

ROOT = Path(__file__).parents[3]
CPU = Device(kind="cpu", name="Planted CPU")

HOLD = (
    "import sys; from pipeline.machine.device import Device; from pipeline.machine.lock import DeviceLock\n"
    "with DeviceLock(Device(kind='cpu', name='Planted CPU'), None, print):\n"
    "    print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def silent(text: str) -> None:
    raise AssertionError(f"said without a reason: {text}")


def hold(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its input ends."""
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
        with pytest.raises(UserError, match=rf"^Planted CPU is being measured on by process {holder.pid} \("):
            DeviceLock(CPU, 0, silent).__enter__()
        # Others may be measured on meanwhile.
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


def test_no_lock_outlives_its_process(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with DeviceLock(CPU, 0, silent):
            pass


def test_another_users_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    """Linux refuses to create what exists as another user's file in a folder such as /tmp, to root as well
    (fs.protected_regular)."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    tmp_path.chmod(0o1777)
    with DeviceLock(CPU, 0, silent) as lock:
        os.chown(lock.path, 12345, 12345)
    with DeviceLock(CPU, 0, silent):
        pass
