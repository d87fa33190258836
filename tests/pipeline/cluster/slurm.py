"""A Slurm of one node on this host: munged, slurmctld and slurmd with all that is theirs in a folder."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.processes import completed

DAEMONS = ("munged", "slurmctld", "slurmd")

CONFIGURATION = """ClusterName=planted
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
JobRequeue=1
KillWait=2
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=first Nodes={host} Default=YES MaxTime=INFINITE State=UP
PartitionName=second Nodes={host} MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why there can be none here."""
    if missing := [name for name in DAEMONS if shutil.which(name, path=_PATH) is None]:
        return f"no {', '.join(missing)} here: apt-get install slurmctld slurmd slurm-client munge"
    return None if os.geteuid() == 0 else "slurmd takes root"


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Slurm:
    """The daemons, as long as they are not ended."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        for name in ("spool", "state"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(2)
        self._folder = folder
        self._conf = folder / "slurm.conf"
        self._conf.write_text(
            CONFIGURATION.format(
                host=host, folder=folder, cores=os.cpu_count(), controller=ports[0], daemon=ports[1]
            )
        )
        munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        munge += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
        self._daemons = [self._start(*munge)]
        self._until((folder / "munge.socket").exists)
        self._daemons += [self._start("slurmctld", "-D"), self._start("slurmd", "-D", "-N", host)]
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%t"))

    @property
    def variables(self) -> dict[str, str]:
        """What a command needs to find it."""
        return {"SLURM_CONF": str(self._conf), "PATH": _PATH}

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        done = completed(command, env=os.environ | self.variables)
        return done.stdout

    def jobs(self, state: str) -> list[str]:
        """The ids of the jobs in a state."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i", f"--states={state}").split()

    def end(self) -> None:
        """End its jobs and its daemons."""
        for job in self.ask("squeue", "--noheader", "--format=%i").split():
            self.ask("scancel", "--signal=KILL", "--full", job)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{command[0]}.out").open("wb") as said:
            return subprocess.Popen(
                command, env=os.environ | self.variables, stdout=said, stderr=said, cwd=self._folder
            )

    def _until(self, true: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not true():
            if time.monotonic() - begin > 60:
                said = "\n".join(path.read_text()[-1500:] for path in self._folder.glob("*.out"))
                self.end()
                raise AssertionError(f"Slurm did not start: {said}")
            time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
