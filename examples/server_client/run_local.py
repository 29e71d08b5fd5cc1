"""Starts everything on this machine: partitions, two servers and two DDP clients.

    python examples/server_client/run_local.py
    python examples/server_client/run_local.py --data ../shared/data/cora.npz --epochs 10

What it does not know it passes to the clients.
"""

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NUM_SERVERS = NUM_CLIENTS = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


def wait_for(processes: dict[str, subprocess.Popen]) -> None:
    """Returns when all have ended well; ends the program when one has not."""
    while any(process.poll() is None for process in processes.values()):
        for name, process in processes.items():
            if process.poll():
                sys.exit(f"{name} ended with exit code {process.returncode}: see above")
        time.sleep(0.1)
    for name, process in processes.items():
        if process.returncode:
            sys.exit(f"{name} ended with exit code {process.returncode}: see above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file as in ../shared/data; without it, a synthetic graph")
    options, for_clients = parser.parse_known_args()
    processes: dict[str, subprocess.Popen] = {}
    with tempfile.TemporaryDirectory(prefix="glt-example-") as folder:
        parts, port = f"{folder}/parts", str(free_port())
        command = [sys.executable, str(HERE / "partition.py"), "--output_dir", parts, "--num_parts", str(NUM_SERVERS)]
        done = subprocess.run(
            [*command, *(["--data", options.data] if options.data else [])], stdout=subprocess.PIPE, text=True
        )
        print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(done.returncode)
        num_classes = re.findall(r"--num_classes (\d+)", done.stdout)[-1]
        try:
            for rank in range(NUM_SERVERS):
                processes[f"server {rank}"] = subprocess.Popen(
                    [sys.executable, str(HERE / "server.py"), "--partition_dir", parts, "--rank", str(rank),
                     "--num_servers", str(NUM_SERVERS), "--num_clients", str(NUM_CLIENTS), "--master_port", port]
                )  # fmt: skip
            processes["torchrun"] = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(NUM_CLIENTS),
                 str(HERE / "client.py"), "--num_classes", num_classes, "--server_port", port,
                 "--num_servers", str(NUM_SERVERS), *for_clients]
            )  # fmt: skip
            wait_for(processes)
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.terminate()
                    process.wait(30)


if __name__ == "__main__":
    main()
