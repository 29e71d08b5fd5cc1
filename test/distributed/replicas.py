"""Servers of the command ``glt serve``, two or more of each partition, that are killed and started again."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import torch

from glt.testing.cluster import free_port, take_census

HERE = Path(__file__).parent
START_S = 120.0  # for a server to be ready, on a machine that does much else


class Servers:
    """``glt serve`` for each rank, which loads partition ``rank % 2``; samplers read no files of other servers. They
    wait for one that is restarted as long as this machine needs for it."""

    def __init__(self, path, num_servers, folder, **lowered):
        self.path, self.num_servers, self.folder, self.port = path, num_servers, folder, free_port()
        self.processes = {}
        lowered = f"lowered.set_constants({ {'RECONNECT_S': START_S, **lowered} })"
        text = f"import sys\nsys.path.append({str(HERE)!r})\nimport lowered\n{lowered}\n"
        (folder / "sitecustomize.py").write_text(text)
        self.env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def start(self, *ranks):
        """Starts servers; returns when they are ready."""
        for rank in ranks:
            flags = ["--partition", self.path, "--rank", rank, "--servers", self.num_servers, "--no-read-local"]
            flags += [
                "--master-port",
                self.port,
                "--workers",
                1,
                "--max-buffer-size",
                "200MB",
                "--log-level",
                "warning",
            ]
            log = (self.folder / f"{rank}.log").open("a")
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-m", "glt", "serve", *map(str, flags)],
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.env,
            )
            log.close()
        for rank in ranks:
            killer = threading.Timer(START_S, self.processes[rank].kill)
            killer.start()
            line = self.processes[rank].stdout.readline()
            killer.cancel()
            assert line, f"server {rank} has not started: {(self.folder / f'{rank}.log').read_text()}"

    def samplers(self, rank):
        children = take_census(self.processes[rank].pid).children
        return [child for child, line in children.items() if "server.worker" in line]

    def kill(self, rank):
        process = self.processes.pop(rank)
        process.kill()
        process.wait(60)
        process.stdout.close()

    def close(self):
        for process in self.processes.values():
            process.terminate()
        for rank in list(self.processes):
            process = self.processes.pop(rank)
            try:
                assert process.wait(60) == 0, (self.folder / f"{rank}.log").read_text()
            finally:
                process.kill()
                process.stdout.close()


def digest(batch):
    found = hashlib.sha256()
    for name in sorted(batch.keys()):
        value = batch[name]
        found.update(name.encode())
        found.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else str(value).encode())
    return found.digest()
