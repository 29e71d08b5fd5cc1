"""A SLURM cluster of two nodes on this machine, with munge, ports and folders of its own."""

import os
import shutil
import signal
import subprocess

import pytest
from launch_world import wait_until

from glt.testing.cluster import free_port

NODES = {"node1": "127.0.0.1", "node2": "127.0.0.2"}
KILL_WAIT_S = 5

CONF = """\
ClusterName=glt
SlurmctldHost={controller}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait}
{nodes}
PartitionName=main Nodes=node[1-2] Default=YES
"""


class Slurm:
    """Daemons that end with :meth:`close`, which leaves nothing. The nodes node1 and node2 have names and
    ``/etc/hosts`` of their own (namespaces), and share the network and the processors."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        for name in ("state", *NODES):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{at} {name}\n" for name, at in NODES.items()))
        lines = [f"NodeName={name} NodeAddr={at} Port={free_port()} CPUs=8" for name, at in NODES.items()]
        self.conf = folder / "slurm.conf"
        self.conf.write_text(
            CONF.format(
                controller=os.uname().nodename, port=free_port(), folder=folder, nodes="\n".join(lines),
                kill_wait=KILL_WAIT_S,
            )
        )  # fmt: skip
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        try:
            files = [f"--{what}={folder}/{name}" for what, name in
                     (("socket", "munge.socket"), ("key-file", "key"), ("pid-file", "munge.pid"),
                      ("seed-file", "seed"), ("log-file", "munge.log"))]  # fmt: skip
            self._start("munged", "--foreground", "--force", "--num-threads=2", *files)
            wait_until((folder / "munge.socket").exists, 20.0, self.log)
            self._start("slurmctld", "-D")
            for name in NODES:
                inside = f"mount --bind {folder}/hosts /etc/hosts && hostname {name} && exec slurmd -D -N {name}"
                self._start("unshare", "--mount", "--uts", "sh", "-c", inside)
            wait_until(self._is_up, 60.0, self.log)
        except BaseException:
            self.close()
            raise

    def _start(self, *words):
        log = (self.folder / f"{len(self.daemons)}.log").open("w")
        with log:
            words = ("setpriv", "--pdeathsig", "TERM", *words)  # also where the tests are killed
            started = subprocess.Popen(words, env=self.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.daemons.append(started)

    def _is_up(self):
        told = self.run("sinfo", "--noheader", "--format=%T %D", check=False)
        return told.split() == ["idle", "2"]

    def log(self):
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("*.log")))

    def run(self, *words, check=True, **options):
        """Runs a command of SLURM, and returns what it says."""
        done = subprocess.run(
            list(map(str, words)), env=self.env, capture_output=True, text=True, timeout=60, check=False, **options
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def submit(self, script, cwd):
        """Submits a batch script; returns the number of the job."""
        return int(self.run("sbatch", "--parsable", "--output", f"{cwd}/%j.out", script, cwd=cwd))

    def state(self, job):
        """The state of a job and its exit code: ``COMPLETED`` and ``0:0``, for example."""
        told = dict(each.partition("=")[::2] for each in self.run("scontrol", "show", "job", job).split())
        return told["JobState"], told["ExitCode"]

    def ended(self, job, cwd, timeout_s=200.0):
        """Waits for the end of a job; returns its state and what it printed."""
        wait_until(
            lambda: self.state(job)[0] not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"), timeout_s, self.log
        )
        return self.state(job), (cwd / f"{job}.out").read_text()

    def close(self):
        self.run("scancel", "--full", "--signal=KILL", "--user=root", check=False)
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20.0)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def need_slurm():
    """Skips where there is no SLURM, or nodes cannot be made."""
    missing = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch", "unshare", "setpriv") if not shutil.which(name)
    ]
    if missing:
        pytest.skip(f"no {missing[0]} here: apt-get install slurm-wlm munge")
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--uts", "true"], check=False).returncode:
        pytest.skip("nodes of SLURM are namespaces, which this user may not make")
