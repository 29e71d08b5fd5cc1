"""Answers ``POST /predict {"nodes": [...]}`` with a GraphSAGE whose graph and features only servers hold.

    glt serve --partition parts --servers 1 --rank 0          # in another terminal, on the hosts that have the graph
    python examples/online_inference.py train --num_classes 16 --model model.pt
    python examples/online_inference.py serve --model model.pt --port 8080
    curl -d '{"nodes": [3, 14]}' localhost:8080/predict

``examples/server_client/partition.py`` makes such partitions, and says the number of classes. Training takes batches
from a loader, ahead; serving asks for the batch of each request when it comes, many at a time. The same nodes get the
same answer each time: what is sampled depends on the nodes and on ``random_seed`` alone.

    python examples/online_inference.py demo

does all of it on this machine, at toy size, and asks itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from aiohttp import ClientSession, web
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import glt
from glt.testing.cluster import free_port

NUM_NEIGHBORS = [10, 5]
CLIENT = web.AppKey("client", glt.distributed.SamplingClient)


# -- the model -----------------------------------------------------------------------------------------------------


def make_model(num_features: int, num_classes: int) -> GraphSAGE:
    return GraphSAGE(num_features, 32, len(NUM_NEIGHBORS), num_classes)


def logits_of(model: GraphSAGE, batch: Data) -> Tensor:
    """Of the seeds."""
    return model(batch.x, batch.edge_index)[: batch.batch_size]


def train(path: str, num_classes: int, epochs: int) -> None:
    torch.manual_seed(0)
    loader = glt.distributed.DistNeighborLoader(None, NUM_NEIGHBORS, "train", 128, shuffle=True, collect_features=True)
    with loader:
        num_features = next(iter(loader)).x.size(1)  # only the servers know
        model = make_model(num_features, num_classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(logits_of(model, batch), batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
            print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}", flush=True)
    torch.save({"sizes": (num_features, num_classes), "weights": model.state_dict()}, path)


def load(path: str) -> GraphSAGE:
    saved = torch.load(path, weights_only=True)
    model = make_model(*saved["sizes"])
    model.load_state_dict(saved["weights"])
    return model.eval()


# -- its face ------------------------------------------------------------------------------------------------------


def make_app(model: GraphSAGE, timeout_s: float = 5.0) -> web.Application:
    """What a request asks for is sampled at once, while others wait for their own; the model runs on this thread, one
    request after the other. Errors of one request are its own."""

    async def client_of(app: web.Application) -> AsyncIterator[None]:
        with glt.distributed.SamplingClient(
            NUM_NEIGHBORS, collect_features=True, timeout_s=timeout_s, max_waiting=256
        ) as app[CLIENT]:
            yield

    async def predict(request: web.Request) -> web.Response:
        try:
            nodes = (await request.json())["nodes"]
            batch = await request.app[CLIENT].asample(nodes)
        except (ValueError, TypeError, LookupError) as error:  # no JSON, no nodes, or a node that is not in the graph
            return web.json_response({"error": str(error)}, status=400)
        except glt.errors.TooManyRequests as error:
            return web.json_response({"error": str(error)}, status=429)
        except glt.errors.ChannelTimeout as error:
            return web.json_response({"error": str(error)}, status=504)
        except glt.errors.GltError as error:  # servers are gone: they may come back
            return web.json_response({"error": str(error)}, status=503)
        with torch.inference_mode():
            classes = logits_of(model, batch).argmax(dim=-1)
        return web.json_response({"classes": classes.tolist()})

    async def stats(request: web.Request) -> web.Response:
        return web.json_response(request.app[CLIENT].stats())

    app = web.Application()
    app.add_routes([web.post("/predict", predict), web.get("/stats", stats)])
    app.cleanup_ctx.append(client_of)
    return app


# -- all of it at once ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_of(partition_dir: str, port: int) -> Iterator[None]:
    command = ["serve", "--partition", partition_dir, "--servers", "1", "--rank", "0", "--clients", "1"]
    process = subprocess.Popen([sys.executable, "-m", "glt", *command, "--master-port", str(port)])
    try:
        yield
        process.wait(60)  # it ends when its client has left
    finally:
        process.kill()
        process.wait()


async def ask(model: GraphSAGE, nodes: list[int], labels: Tensor, at_once: int = 32) -> None:
    """Asks for each node in a request of its own, many at a time."""
    runner = web.AppRunner(make_app(model, timeout_s=60.0))
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    places, taken = asyncio.Semaphore(at_once), []

    async with ClientSession(f"http://127.0.0.1:{port}") as session:

        async def predict(nodes: list[int]) -> tuple[int, dict]:
            async with places:
                start = time.perf_counter()
                async with session.post("/predict", json={"nodes": nodes}) as response:
                    answer = await response.json()
                taken.append(time.perf_counter() - start)
                return response.status, answer

        answers = await asyncio.gather(*(predict([node]) for node in nodes))
        found = torch.tensor([answer["classes"][0] for _, answer in answers])
        taken.sort()
        print(f"{len(nodes)} requests, {at_once} at a time: p50 {taken[len(taken) // 2] * 1e3:.1f} ms", flush=True)
        print(f"accuracy {(found == labels[nodes]).float().mean():.4f}")
        again = await predict(nodes[:8])
        print(f"together: {json.dumps(again[1])}")
        print(f"a node that is not there: {await predict([len(labels)])}")
        async with session.get("/stats") as response:
            print(f"{(await response.json())['num_requests']} requests to the sampling process", flush=True)
    await runner.cleanup()


def demo() -> None:
    from glt.data.synthetic import synthetic_graph
    from glt.partition import RandomPartitioner

    task, port = synthetic_graph(800, num_classes=4), free_port()
    mask = torch.zeros(task.num_nodes, dtype=torch.bool).index_fill_(0, task.train_idx, True)
    with tempfile.TemporaryDirectory(prefix="glt-example-") as folder:
        RandomPartitioner(
            f"{folder}/parts", 2, task.num_nodes, task.edge_index, node_feat=task.x, node_label=task.y,
            node_attrs={"train_mask": mask}, edge_assign_strategy="by_dst",
        ).partition()  # fmt: skip
        with server_of(f"{folder}/parts", port):
            glt.distributed.init_client(1, 1, 0, "127.0.0.1", port)
            model_path = str(Path(folder) / "model.pt")
            train(model_path, num_classes=4, epochs=5)
            asyncio.run(ask(load(model_path), task.test_idx[:200].tolist(), task.y))
            glt.distributed.shutdown_client()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "serve", "demo"])
    parser.add_argument("--model", default="model.pt", help="file of the trained model")
    parser.add_argument("--num_classes", type=int, default=16, help="to train: as partition.py says")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--port", type=int, default=8080, help="to serve: where HTTP is spoken, on this host only")
    parser.add_argument("--num_servers", type=int, default=1)
    parser.add_argument("--server_addr", default="127.0.0.1", help="host of server 0")
    parser.add_argument("--server_port", type=int, default=29540, help="port of server 0")
    options = parser.parse_args()
    torch.set_num_threads(1)  # batches are small: threads of torch would wait for each other
    if options.what == "demo":
        demo()
        return
    glt.distributed.init_client(options.num_servers, 1, 0, options.server_addr, options.server_port)
    if options.what == "train":
        train(options.model, options.num_classes, options.epochs)
    else:
        web.run_app(make_app(load(options.model)), host="127.0.0.1", port=options.port)
    glt.distributed.shutdown_client()


if __name__ == "__main__":
    main()
