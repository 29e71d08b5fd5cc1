"""Serves a partition to the clients of a job until they have left. See README.md beside this file.

    python examples/server_client/server.py --partition_dir parts --rank 0

It needs no knowledge of the task: what to sample is up to the clients.
"""

import argparse
import logging

import glt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition_dir", required=True, help="what partition.py has written")
    parser.add_argument("--rank", type=int, required=True, help="this server; it serves the partition of this number")
    parser.add_argument("--num_servers", type=int, default=2)
    parser.add_argument("--num_clients", type=int, default=2, help="the server ends when so many have left")
    parser.add_argument("--master_addr", default="localhost", help="host of server 0, the same for all")
    parser.add_argument("--master_port", type=int, default=11111, help="port of server 0, the same for all")
    parser.add_argument("--host", help="address to listen at; default: of this host on the way to master_addr")
    parser.add_argument("--port", type=int, default=0, help="port of a server other than 0, for firewalls; 0: any")
    parser.add_argument("--num_workers", type=int, default=1, help="sampling processes to start with")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=f"server {options.rank}: %(message)s")

    dataset = glt.distributed.DistDataset()
    dataset.load(graph_dir=options.partition_dir, partition_idx=options.rank)
    glt.distributed.init_server(
        num_servers=options.num_servers,
        num_clients=options.num_clients,
        server_rank=options.rank,
        dataset=dataset,
        master_addr=options.master_addr,
        master_port=options.master_port,
        host=options.host,
        port=options.port,
        num_workers=options.num_workers,
    )
    glt.distributed.wait_and_shutdown_server()


if __name__ == "__main__":
    main()
