"""Processes that try to do harm, confined by the real namespaces of this machine."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

from kernel_pipeline.machine import confinement, other_user
from kernel_pipeline.machine.confinement import Confinement

MEMORY = 400_000_000

WRITES = """
import os, sys
for path in sys.argv[1:]:
    try:
        open(path, "a").write("harm")
    except OSError as error:
        print(error.strerror)
    else:
        print("written")
"""

CONNECTS = """
import socket, sys
for host, port in (("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80)):
    try:
        socket.create_connection((host, port), 5)
    except OSError as error:
        print(error.strerror)
    else:
        print("connected")
"""

FORKS = """
import os, time
for _ in range(1000 + 16 * os.cpu_count()):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""

HOARDS = "held = [bytearray(1 << 26) for _ in range(64)]; import time; time.sleep(60)"

KILLS = """
import os, sys
try:
    os.kill(int(sys.argv[1]), 9)
except ProcessLookupError:
    print("no such process")
"""


CACHES = """
import os, sys
for name in sys.argv[1:]:
    folder = os.environ[name]
    os.makedirs(folder, exist_ok=True)
    open(os.path.join(folder, "written"), "w").close()
    print("another" if "tmp" in folder and name.lower() in folder else folder)
"""

NAMES_A_THREAD = """
import threading
from pathlib import Path

def name():
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("named")
    print(Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip())
one = threading.Thread(target=name)
one.start()
one.join()
"""


def limits(shares_gpu: bool = False) -> Confinement:
    # Root stays root here: whether it can become another user depends on where Python and the checkout are.
    found = confinement.limits(MEMORY, [], shares_gpu).replace(user=None)
    if (why := confinement.why_not(found)) is not None:
        pytest.skip(f"this machine confines no process: {why}")
    return found


def confined(program: str, *words: object, within: Confinement) -> subprocess.CompletedProcess[str]:
    command = confinement.command(within, [sys.executable, "-c", program, *map(str, words)])
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("shares_gpu", [False, True])
def test_a_confined_process_reaches_no_network_and_none_of_the_users_files(
    shares_gpu: bool, tmp_path: Path
) -> None:
    within = limits(shares_gpu)
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = confined(CONNECTS, server.getsockname()[1], within=within)
    assert len(done.stdout.splitlines()) == 2 and "connected" not in done.stdout, done
    repository, own = Path(__file__), tmp_path / "verdict.json"
    own.write_text("{}")
    before = repository.read_bytes()
    outside = f"/proc/{os.getpid()}/oom_score_adj"
    paths = (repository, Path.home() / "harm", "/proc/sys/kernel/core_pattern", outside, own)
    done = confined(WRITES, *paths, within=within)
    # The last file is a temporary one: the process writes to a copy that vanishes with it. This repository
    # may be in a temporary folder, too.
    refused = "Read-only file system"
    first = "written" if repository.is_relative_to(tempfile.gettempdir()) else refused
    unseen = refused if shares_gpu else "No such file or directory"
    assert done.stdout.splitlines() == [first, refused, refused, unseen, "written"], done
    assert (own.read_text(), repository.read_bytes()) == ("{}", before)
    assert not (Path.home() / "harm").exists()


@pytest.mark.parametrize("shares_gpu", [False, True])
def test_a_confined_process_names_its_threads_without_which_cuda_does_not_start(shares_gpu: bool) -> None:
    done = confined(NAMES_A_THREAD, within=limits(shares_gpu))
    assert (done.stdout, done.stderr) == ("named\n", ""), done


def test_a_kept_folder_is_the_only_one_that_is_written_to_the_disk(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    within = limits().replace(kept=(kept,))
    done = confined(WRITES, kept / "file", tmp_path / "other", within=within)
    assert done.stdout.split() == ["written", "written"], done
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_a_mount_below_a_temporary_folder_is_read_and_the_rest_of_the_folder_is_written_to(
    tmp_path: Path,
) -> None:
    for name in ("mounts/mount", "mounts/beside", "folder"):
        (tmp_path / name).mkdir(parents=True)
    within = limits().replace(temporary=(tmp_path,))
    steps = f"cd {tmp_path}; cat mounts/mount/file; touch new folder/new mounts/beside/new mounts/mount/new"
    command = confinement.command(within, ["sh", "-c", steps])
    mounts = f"mount -t tmpfs none {tmp_path}/mounts/mount && echo read > {tmp_path}/mounts/mount/file"
    unshared = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    if subprocess.run([*unshared, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine mounts nothing in a namespace")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([*unshared, *command], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "read\n", done
    assert done.stderr == "touch: cannot touch 'mounts/mount/new': Read-only file system\n"
    assert not [*tmp_path.rglob("new")]


@pytest.mark.parametrize("own", [None, "read_only", "temporary"])
def test_triton_and_inductor_write_to_a_cache_that_they_can_write_to(
    own: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {None: None, "read_only": "/usr", "temporary": str(tmp_path)}
    folder = folders[own]
    for name in confinement.READ_CACHES:
        monkeypatch.delenv(name, raising=False) if folder is None else monkeypatch.setenv(name, folder)
    done = confined(CACHES, *confinement.READ_CACHES, within=limits())
    assert done.stdout.split() == [folder if own == "temporary" else "another"] * 2, done
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shares_gpu", [False, True])
@pytest.mark.parametrize(
    ("program", "why"), [(FORKS, "it started more than"), (HOARDS, "it used more than 0.4 GB of memory")]
)
def test_too_many_processes_and_too_much_memory_end_it_whole(
    program: str, why: str, shares_gpu: bool
) -> None:
    program += f"\n# {uuid4()}"  # tells it from the same program of another test process
    done = confined(program, within=limits(shares_gpu))
    assert done.returncode == -9 and done.stderr.splitlines()[-1].startswith(why), done
    assert not [path for path in Path("/proc").glob("[0-9]*") if program.encode() in _command(path)], (
        "processes are left"
    )


def test_it_sees_no_process_outside_and_ends_as_its_command_ends() -> None:
    within = limits()
    assert confined(KILLS, os.getpid(), within=within).stdout == "no such process\n"
    assert confined("raise SystemExit(7)", within=within).returncode == 7


def test_the_user_that_roots_process_becomes_reads_no_file_of_root_and_writes_to_caches() -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    within = limits().replace(user=other_user.NOBODY)
    with tempfile.NamedTemporaryFile() as secret, tempfile.TemporaryDirectory() as cache:
        assert Path(secret.name).stat().st_mode & 0o777 == 0o600
        (kept := Path(cache, "folder")).mkdir(mode=0o700)
        (kept / "file").write_text("content")
        (kept / "lock").touch(mode=0o644)
        within = within.replace(lent=(Path(cache),))
        if (why := confinement.why_not(within)) is not None:
            pytest.skip(f"this machine makes no process another user's: {why}")
        steps = f"id -u; cat {secret.name}; cat {kept}/file /etc/passwd > /dev/null && echo read"
        steps += f"; echo >> {kept}/lock && touch {kept}/new $HOME/new && echo written"
        steps += f"; kill -0 {os.getpid()} || exit 7"
        done = subprocess.run(
            confinement.command(within, ["sh", "-c", steps]), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.split()) == (7, ["65534", "read", "written"]), done
        assert f"{secret.name}: Permission denied" in done.stderr
        assert [one.stat().st_uid for one in (kept, *kept.iterdir())] == [0, 0, 0]


@pytest.mark.parametrize(
    ("user", "mode", "found"), [(0, 0o755, other_user.NOBODY), (0, 0o700, None), (1000, 0o755, None)]
)
def test_root_becomes_another_user_only_if_all_that_is_read_is_open(
    user: int, mode: int, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    for name, value in (("prefix", "/usr"), ("base_prefix", "/usr"), ("path", ["/usr", "/no/folder"])):
        monkeypatch.setattr(sys, name, value)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(mode)
        assert other_user.possible([Path(folder)]) == found


def test_a_machine_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "command", lambda confined, words: ["sh", "-c", "echo no >&2; exit 1"])
    assert confinement.why_not(confinement.limits(MEMORY + 1, [], False)) == "no"


def test_a_driver_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits(shares_gpu=True)
    source = tmp_path / "cuda.c"
    source.write_text("int cuInit(unsigned flags) { return 304; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    why = confinement.why_not(confinement.limits(MEMORY + 2, [], shares_gpu=True))
    assert why == "CUDA does not start in a confined process: error 304"


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
