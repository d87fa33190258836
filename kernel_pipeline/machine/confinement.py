"""Confine a process and all that it starts: no network, no writing to the user's files, and limits of memory
and of processes.

``enter`` and then ``confine`` do so for a process without threads, by namespaces(7) of Linux, which need no
rights. A process of root becomes another user where it can. ``command`` does so for a command line: ``python
-m kernel_pipeline.machine.confinement LIMITS COMMAND ...``. A reaper outside of the namespaces watches the
limits.

Legacy CUDA IPC works only inside one PID and one network namespace. So a process that shares a GPU's memory
keeps these two, and seccomp(2) refuses it sockets for a network.
"""

from __future__ import annotations

import ctypes
import fcntl
import getpass
import os
import platform
import resource
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

from ..records.base import Record
from . import other_user
from .mounting import BIND, NODEV, NOEXEC, NOSUID, PRIVATE, REC, checked, libc, make_writable, mount, mounted
from .reaper import children, guard

NEWNS, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000

MOUNT_SETATTR = 442
"""The number of mount_setattr(2), which Linux has since 5.12, on every architecture."""

ATTR_RDONLY, ATTR_NOSUID, AT_FDCWD, AT_RECURSIVE = 1, 2, -100, 0x8000

PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38

CAPABILITIES = 64
"""More capabilities than Linux has."""

SIOCSIFFLAGS, IFF_UP = 0x8914, 1

SOCKET_CALL = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""The name of the architecture for seccomp(2), and the number of socket(2) there."""

OTHER_CALLS = 0x40000000
"""The first number of the calls of x32, a second way to make the same calls on x86-64."""

IO_URING_SETUP = 425
"""The number of io_uring_setup(2), which can open sockets, too."""

PRIVATE_DEVICES = ("null", "zero", "full", "random", "urandom")

SCRATCH = Path("/run")
"""The folder in whose place a confined process gets memory for its files. It holds the sockets of services,
which a confined process must not reach."""

THREADS, THREADS_PER_CORE = 256, 16

READ_ONLY_PROC = ("bus", "fs", "irq", "sys", "sysrq-trigger")
"""The parts of /proc that change the machine: those that the OCI runtime runc makes read-only, too."""

CACHES = ("XDG_CACHE_HOME", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "MPLCONFIGDIR")
"""The variables that name folders of caches. A confined process has its own."""

READ_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""The same, of caches that a confined process reads if it can write there, which no other process sees."""

CUDA_STARTS = """
import ctypes, sys
try:
    error = ctypes.CDLL("libcuda.so.1").cuInit(0)
except OSError:
    error = 0
sys.exit(f"CUDA does not start in a confined process: error {error}" if error else 0)
"""
"""A program that fails if there is a CUDA driver that does not start."""

CHOSEN: ContextVar[Confinement | None] = ContextVar("CHOSEN", default=None)
"""The limits of the workers that are started in this context; None if they are not confined."""


class Confinement(Record):
    """The limits of a confined process and its descendants.

    memory_bytes:
        The most memory, resident or in files.
    threads:
        The most threads of all processes together.
    temporary:
        Folders in which files can be written. They vanish with the process and nobody else sees them.
    kept:
        Folders in which the process writes to the disk.
    shares_gpu:
        Whether the process maps GPU memory of a process outside.
    user:
        The user that a process of root becomes; None if it stays root's.
    lent:
        Folders of root in the temporary ones that this user can write to.
    """

    memory_bytes: int
    threads: int
    temporary: tuple[Path, ...]
    kept: tuple[Path, ...] = ()
    shares_gpu: bool = False
    user: int | None = None
    lent: tuple[Path, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether the process stays root's."""
        return self.user is None and os.geteuid() == 0

    def excess(self, pid: int) -> str | None:
        """Return which limit the process ``pid`` exceeds with its descendants, as a clause; None if none."""
        found = _family(pid)
        if sum(_threads(one) for one in found) > self.threads:
            return f"it started more than {self.threads} processes and threads"
        # A page that several processes share counts once in PSS, which is slow to read.
        if sum(map(_resident, found)) > self.memory_bytes and sum(map(_share, found)) > self.memory_bytes:
            return f"it used more than {self.memory_bytes / 1e9:g} GB of memory"
        return None


def limits(
    memory_bytes: int | None, caches: Sequence[str], shares_gpu: bool, read: Sequence[Path] = ()
) -> Confinement:
    """Return the limits for a process on this machine; by default half of the memory. ``caches`` are further
    folders that the process can write to, besides the temporary files, and ``read`` are folders that it has
    to read. CUDA IPC is for processes of one user.
    """
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    folders: list[Path] = []
    for folder in (Path(one).resolve() for one in (tempfile.gettempdir(), *caches)):
        if folder.is_dir() and not any(folder.is_relative_to(other) for other in folders):
            folders.append(folder)
    return Confinement(
        memory_bytes=memory_bytes or pages // 2,
        threads=THREADS + THREADS_PER_CORE * (os.cpu_count() or 1),
        temporary=tuple(folders),
        shares_gpu=shares_gpu,
        user=None if shares_gpu else other_user.possible(read),
        lent=tuple(path for path in (Path(one).resolve() for one in caches) if path.is_dir()),
    )


@cache
def why_not(confined: Confinement) -> str | None:
    """Return the reason why this machine can't confine a process, or why CUDA does not start there, as a
    clause; None if both work."""
    words = [sys.executable, "-S", "-c", CUDA_STARTS] if confined.shares_gpu else ["true"]
    done = subprocess.run(command(confined, words), capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]


def command(confined: Confinement, words: Sequence[str]) -> list[str]:
    """Return the command line that runs a command confined."""
    return [sys.executable, "-m", __name__, confined.to_json().decode(), *words]


@contextmanager
def workers(confined: Confinement | None) -> Iterator[None]:
    """Confine the workers of supervisors that are made in this context; with None confine none."""
    before = CHOSEN.set(confined)
    try:
        yield
    finally:
        CHOSEN.reset(before)


def enter(confined: Confinement) -> None:
    """Enter a new user namespace; children of this process get a PID namespace of their own. Raises OSError
    if Linux refuses."""
    user, group = os.geteuid(), os.getegid()
    unshare = partial(_unshare, NEWUSER | (0 if confined.shares_gpu else NEWPID), "a user namespace")
    if confined.user is not None:
        other_user.mapped(confined.user, unshare)
        return
    unshare()
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path("/proc/self", name).write_text(text)


def confine(confined: Confinement) -> None:
    """Confine this process, a child of a process that called ``enter``. Raises OSError if Linux refuses."""
    _unshare(NEWNS | (0 if confined.shares_gpu else NEWNET), "namespaces for mounts and the network")
    Path("/proc/self/oom_score_adj").write_text("1000")
    mount("none", "/", None, REC | PRIVATE)
    writable = _files(confined)
    own_processes = _processes(confined)
    if not confined.shares_gpu:
        with socket.socket() as made:
            fcntl.ioctl(made, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    _set_attributes(Path("/"), AT_RECURSIVE, on=ATTR_RDONLY | ATTR_NOSUID)
    for folder in (own_processes, SCRATCH, Path("/dev/shm"), *writable, *confined.kept):
        _set_attributes(folder, 0, off=ATTR_RDONLY)
    own = tempfile.mkdtemp()
    unwritable = [name for name in READ_CACHES if not os.access(os.environ.get(name, ""), os.W_OK)]
    os.environ |= {name: str(Path(own, name.lower())) for name in (*CACHES, *unwritable)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (confined.memory_bytes, confined.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if confined.user is not None:
        os.environ["HOME"] = own
        with suppress(KeyError, OSError):  # the account has no name
            os.environ["LOGNAME"] = getpass.getuser()  # torch names its folder of precompiled headers by it
        other_user.lend(Path(own), confined.user, Path(own))
    _give_up_rights(confined.user)
    if confined.shares_gpu:
        _refuse_networks()


def _files(confined: Confinement) -> list[Path]:
    """Mount the folders of a confined process. Return those that are writable copies."""
    size = f"size={confined.memory_bytes // 2},nr_inodes=1000000,mode=755"
    sources = [os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in confined.kept]
    shared = os.open("/dev/shm", os.O_PATH | os.O_DIRECTORY)
    mount("tmpfs", str(SCRATCH), "tmpfs", NOSUID | NODEV, size)
    writable, mounts = list[Path](), mounted()
    for folder in confined.temporary:
        writable += make_writable(folder, SCRATCH, mounts)
        if confined.user is not None:
            os.chown(folder, confined.user, confined.user)
            for lent in (one for one in confined.lent if one.is_relative_to(folder)):
                other_user.lend(lent, confined.user, folder)
    for folder, source in zip(confined.kept, sources, strict=True):
        mount(f"/proc/self/fd/{source}", str(folder), None, BIND)
    devices = SCRATCH / "dev"
    (devices / "shm").mkdir(parents=True)
    for device in [*(Path("/dev", name) for name in PRIVATE_DEVICES), *Path("/dev").glob("nvidia*")]:
        place = devices / device.name
        place.mkdir() if device.is_dir() else place.touch()
        mount(str(device), str(place), None, BIND | REC)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (devices / name).symlink_to(f"/proc/self/{target}")
    own = SCRATCH / "shm"
    own.mkdir()
    own.chmod(0o1777)
    mount(f"/proc/self/fd/{shared}" if confined.shares_gpu else str(own), str(devices / "shm"), None, BIND)
    mount(str(devices), "/dev", None, BIND | REC)
    for source in (*sources, shared):
        os.close(source)
    return writable


def _processes(confined: Confinement) -> Path:
    """Return the folder below /proc in which a confined process can write. CUDA names its threads there, and
    fails to start otherwise."""
    if confined.shares_gpu:  # it sees the processes outside, and writes to its own threads' files alone
        folder = Path(f"/proc/{os.getpid()}/task")
        mount(str(folder), str(folder), None, BIND)
        return folder
    folder = Path("/proc")
    mount("proc", str(folder), "proc", NOSUID | NODEV | NOEXEC)
    for part in filter(Path.exists, (folder / name for name in READ_ONLY_PROC)):
        mount(str(part), str(part), None, BIND)
    return folder


def _give_up_rights(user: int | None) -> None:
    """Give up all capabilities for good, and become the user."""
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    for number in range(CAPABILITIES):
        with suppress(OSError):  # Linux has no such capability
            _prctl(PR_CAPBSET_DROP, number)
    if user is not None:
        other_user.become(user)
    header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
    checked(libc.capset(header, none), "to give up capabilities")


def _refuse_networks() -> None:
    """Let socket(2) fail for all but Unix sockets."""
    name, call = SOCKET_CALL.get(platform.machine(), (0, 0))
    load, equal, above, answer = 0x20, 0x15, 0x35, 0x06  # of linux/bpf_common.h: LD ABS, JEQ, JGE, RET
    refuse, allow = 0x00050000 | 13, 0x7FFF0000  # SECCOMP_RET_ERRNO | EACCES, SECCOMP_RET_ALLOW
    program = b"".join(
        struct.pack("HBBI", *one)
        for one in (
            (load, 0, 0, 4),  # the architecture
            (equal, 0, 6, name),
            (load, 0, 0, 0),  # the number of the call
            (above, 4, 0, OTHER_CALLS),
            (equal, 3, 0, IO_URING_SETUP),
            (equal, 0, 3, call),
            (load, 0, 0, 16),  # its first argument
            (equal, 1, 0, socket.AF_UNIX),
            (answer, 0, 0, refuse),
            (answer, 0, 0, allow),
        )
    )
    text = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    _prctl(PR_SET_SECCOMP, 2, ctypes.create_string_buffer(filtered, len(filtered)))


def _unshare(flags: int, what: str) -> None:
    checked(libc.unshare(flags), f"to make {what}")


def _set_attributes(path: Path, flags: int, on: int = 0, off: int = 0) -> None:
    attributes = struct.pack("QQQQ", on, off, 0, 0)
    done = libc.syscall(
        MOUNT_SETATTR, AT_FDCWD, str(path).encode(), flags, attributes, ctypes.c_size_t(len(attributes))
    )
    checked(done, f"to set what can be written below {path}")


def _prctl(option: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> None:
    words = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    zeros = [ctypes.c_ulong(0)] * (4 - len(words))
    checked(libc.prctl(option, *words, *zeros), "to limit this process")


def _family(pid: int) -> list[int]:
    return [pid, *(each for child in children(pid) for each in _family(child))]


def _threads(pid: int) -> int:
    with suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    return 0


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _share(pid: int) -> int:
    """Return the proportional set size of a process in bytes, or its resident memory if that is unknown."""
    with suppress(OSError, IndexError):  # it has ended
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.partition("\nPss:")[2].split()[0]) * 1024
    return _resident(pid)


def _run(confined: Confinement, words: Sequence[str]) -> NoReturn:
    try:
        confine(confined)
        os.execvp(words[0], [*words])
    except OSError as error:
        print(error.strerror, file=sys.stderr, flush=True)
    os._exit(1)


def main(confined: Confinement, words: Sequence[str]) -> NoReturn:
    """Run a command confined, and end as it ends."""
    try:
        enter(confined)
    except OSError as error:
        sys.exit(error.strerror)
    guard(os.getppid(), partial(_run, confined, words), confined.excess)


if __name__ == "__main__":
    main(Confinement.from_json(sys.argv[1]), sys.argv[2:])
