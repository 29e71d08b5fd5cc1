"""Mistakes of a first day with several processes: places in a job, sampling processes, servers, graphs by name."""

import pytest
from mistake import BEGIN, MARK, Mistake

from glt.testing.cluster import free_port

# What each script of a trainer begins with; the test puts a free port into it.
TRAINER = """\
dataset = gd.DistDataset().load("parts", 0)
options = gd.MpDistSamplingWorkerOptions(master_addr="localhost", master_port=PORT, rpc_timeout=2)
"""
ALONE = TRAINER + "gd.init_worker_group(world_size=1, rank=0)\n"
LOADER = "gd.DistNeighborLoader(dataset, [5], ids, batch_size=2, worker_options=options)"
STANDALONE = 'gd.initialize(part_config="parts")\ngraph = gd.DistGraph("parts")\n'

# Two trainers: that which the user sees, of rank 0, and one that it has started, of rank 1.
PAIR = (
    TRAINER
    + "options.rpc_timeout = 20\n"
    + "rank = len(sys.argv) - 1\n"
    + "other = subprocess.Popen([sys.executable, __file__, '1'], stderr=subprocess.DEVNULL) if rank == 0 else None\n"
)

PLACES = [
    Mistake(
        "no init_worker_group",
        TRAINER + LOADER,
        "RuntimeError", "no distributed context", "init_worker_group", "(world_size, rank, group_name)", "first",
    ),
    Mistake(
        "ranks from 1",
        "gd.init_worker_group(world_size=2, rank=2)",
        "ValueError", "rank", "= 2", "[0, 2)", "ranks count from 0",
    ),
    Mistake(
        "the environment's text as a number",
        "gd.init_worker_group('2', '0')",
        "TypeError", "world_size", "'2'", "expected an integer", "give int(world_size)",
    ),
    Mistake(
        "two places for a process",
        "gd.init_worker_group(2, 0)\ngd.init_worker_group(2, 1)",
        "RuntimeError", "this process is already", "rank=0", "cannot become", "rank=1",
    ),
    Mistake(
        "no sampling processes",
        "gd.MpDistSamplingWorkerOptions(num_workers=0)",
        "ValueError", "num_workers", "= 0", "expected 1 to 1024",
    ),
    Mistake(
        "a size in words",
        "gd.MpDistSamplingWorkerOptions(channel_size='lots')",
        "ValueError", "channel_size", "'lots'", "expected bytes as an int, or a text such as '512KB'",
    ),
    Mistake(
        "a partition for each trainer, from 1",
        "gd.DistDataset().load('parts', 2)",
        "PartitionError", "partition_idx", "= 2", "expected 0 to 1",
    ),
    Mistake(
        "more trainers than were started",
        TRAINER + f"gd.init_worker_group(world_size=3, rank=0)\n{LOADER}",
        "RendezvousError", "trainers of rank [1, 2]", "within 2 s", "world_size = 3", "each with a rank of its own",
    ),
    Mistake(
        "the same rank twice",
        TRAINER + "if len(sys.argv) == 1:\n"
        "    import atexit, socket, time\n"
        "    first = subprocess.Popen([sys.executable, __file__, '0'], stderr=subprocess.DEVNULL)\n"
        "    atexit.register(first.kill)\n"
        "    while socket.socket().connect_ex(('localhost', PORT)):\n"
        "        time.sleep(0.05)  # until it waits for rank 1\n"
        "options.rpc_timeout = 20\n"
        f"gd.init_worker_group(world_size=2, rank=0)\n{LOADER}",
        "RendezvousError", "master_port", "cannot be opened", "another trainer of rank 0", "choose another",
    ),
    Mistake(
        "other options in another trainer",
        PAIR + f"gd.init_worker_group(world_size=2, rank=rank)\n{LOADER.replace('=2', '=2 + rank')}",
        "RendezvousError", "batch_size", "2 on rank 0, 3 on rank 1", "expected the same everywhere", "same order",
    ),
    Mistake(
        "the port is taken",
        "import socket\nother = socket.create_server(('', PORT))\n"
        + TRAINER + f"gd.init_worker_group(world_size=2, rank=0)\n{LOADER}",
        "RendezvousError", "master_port", "cannot be opened", "another program has it", "choose another",
    ),
    Mistake(
        "more shared memory than there is",
        ALONE + f"options = gd.MpDistSamplingWorkerOptions(channel_size='10TB')\n{LOADER}",
        "MemoryError", "channel_size", "10.0 TB", "available", "ask for less",
    ),
    Mistake(
        "ulimit -n is too low",
        ALONE + "import resource\n"
        "most = 2 + max(map(int, os.listdir('/proc/self/fd')))\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))\n{LOADER}",
        "OSError", "Too many open files", "this process may have", "raise the limit", "ulimit -n",
    ),
    Mistake(
        "a loader that was shut down",
        ALONE + f"train = {LOADER}\ntrain.shutdown()\nfor batch in train:  {MARK}\n    pass",
        "RuntimeError", "the loader", "was shut down", "create a new one",
    ),
    Mistake(
        "a loader in a fork",
        ALONE + f"train = {LOADER}\npid = os.fork()\nif pid == 0:\n    next(iter(train))  {MARK}\n"
        "train.shutdown()\nsys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "RuntimeError", "this process", "is a fork of the trainer", "iterate where", "create it in the fork",
    ),
    Mistake(
        "seeds of another partitioning",
        ALONE + "gd.DistNeighborLoader(dataset, [5], torch.tensor([0, 100]))",
        "IndexError", "input_nodes[1]", "= 100", "outside [0, 100)", "num_nodes = 100",
    ),
    Mistake(
        "a split where there is no server",
        ALONE + "gd.DistNeighborLoader(dataset, [5], 'train')",
        "ValueError", "input_nodes", "'train'", "", "",
    ),
]  # fmt: skip

CLIENT = "gd.init_client(num_servers=1, num_clients=1, client_rank=0, master_addr='localhost', master_port=PORT"
SERVED = (
    "import atexit\n"
    "command = 'glt serve --partition parts --servers 1 --rank 0 --clients 1 --master-port'.split()\n"
    "server = subprocess.Popen([sys.executable, '-m', *command, str(PORT)], stderr=subprocess.DEVNULL)\n"
    f"atexit.register(server.kill)\n{CLIENT})\n"
)
REMOTE = "gd.RemoteDistSamplingWorkerOptions(server_rank=1)"

SERVERS = [
    Mistake(
        "no server is there",
        CLIENT + ", rpc_timeout=1)",
        "RendezvousError", "server 0", "localhost:", "within 1 s", "do master_addr and master_port name",
    ),
    Mistake(
        "servers are asked without init_client",
        "gd.request_server(0, 'num_nodes')",
        "RuntimeError", "this process", "is no client", "call glt.distributed.init_client(...) first",
    ),
    Mistake(
        "a token file that there is not",
        CLIENT + ", token_file='job.token')",
        "ValueError", "token_file", "job.token' cannot be read", "No such file",
    ),
    Mistake(
        "a certificate for a token",
        "open('job.pem', 'w').write('-----BEGIN CERTIFICATE-----')\n" + CLIENT + ", token_file='job.pem')",
        "ValueError", "token_file", "job.pem' holds no token", "expected a file that `glt token` wrote",
    ),
    Mistake(
        "the path of a certificate for TLS options",
        "gd.ServerOptions(tls='job.pem')",
        "TypeError", "tls", "has type str", "expected a glt.distributed.TlsOptions",
    ),
    Mistake(
        "a certificate without its key",
        "gd.TlsOptions(cert='job.pem')",
        "ValueError", "key", "= None", "expected both a certificate and its key",
    ),
    Mistake(
        "text as a flag",
        "gd.MpDistSamplingWorkerOptions(require_auth='yes')",
        "TypeError", "require_auth", "'yes'", "expected True or False",
    ),
    Mistake(
        "a token that the server does not ask for",
        SERVED.replace(f"{CLIENT})\n", "")
        + "subprocess.run([sys.executable, '-m', 'glt', 'token', 'job.token'])\n"
        + CLIENT + ", token_file='job.token')",
        "RendezvousError", "it asks for no token", "job.token", "start it with the same token file",
    ),
    Mistake(
        "a server that there is not",
        SERVED + f"gd.DistNeighborLoader(None, [5], ids, worker_options={REMOTE})",
        "ValueError", "server_rank", "= 1", "expected 0 to 0",
    ),
    Mistake(
        "a split of partitions without a mask",
        SERVED + "gd.DistNeighborLoader(None, [5], 'train')",
        "ValueError", "input_nodes", "'train'", "no 'train_mask'", "partition with node_attrs={'train_mask': ...}",
    ),
    Mistake(
        "a function that the server does not know",
        SERVED + "gd.request_server(0, lambda: 1)",
        "LookupError", "<lambda>", "is no function that this server runs", "registered are", "register_server_function",
    ),
]  # fmt: skip

GRAPHS = [
    Mistake(
        "a graph before initialize",
        "gd.DistGraph('papers', part_config='parts')",
        "RuntimeError", "call", "glt.distributed.initialize()", "first",
    ),
    Mistake(
        "hosts in a file that there is not",
        "gd.initialize(ip_config='ip_config.txt')",
        "FileNotFoundError", "ip_config", "'ip_config.txt'", "expected one with lines ADDRESS [PORT]",
    ),
    Mistake(
        "a mask of too few nodes to split",
        STANDALONE + "gd.node_split(torch.ones(99, dtype=torch.bool))",
        "ValueError", "nodes", "a mask of 99", "expected one value for each of 100",
    ),
    Mistake(
        "embeddings of no columns",
        STANDALONE + "gd.DistEmbedding(100, 0)",
        "ValueError", "embedding_dim", "= 0", "expected an integer of at least 1",
    ),
    Mistake(
        "an embedding of a node that there is not",
        STANDALONE + "gd.DistEmbedding(100, 4)(torch.tensor([100]))",
        "IndexError", "ids[0]", "= 100", "outside [0, 100)",
    ),
    Mistake(
        "rows of another dtype",
        STANDALONE + "graph.ndata['x'][ids] = torch.ones(10, 4, dtype=torch.int64)",
        "TypeError", "values", "torch.int64", "expected torch.float32", "convert it with .to()",
    ),
    Mistake(
        "rows of another width",
        STANDALONE + "graph.ndata['x'][ids] = torch.ones(10, 5)",
        "ValueError", "values", "[10, 5]", "expected a dense one of [10, 4]", "a row for each of ids",
    ),
    Mistake(
        "a tensor in place of a DistTensor",
        STANDALONE + "graph.ndata['h'] = torch.ones(100, 2)",
        "TypeError", "['h']", "Tensor", "expected a DistTensor", "make one with DistTensor(shape, dtype, part='node')",
    ),
    Mistake(
        "dense parameters for a sparse optimizer",
        "gd.SparseAdam(torch.nn.Linear(3, 4).parameters(), lr=0.1)",
        "TypeError", "params", "Parameter", "expected embeddings", "give dense parameters to",
    ),
    Mistake(
        "one number of neighbours",
        STANDALONE + "gd.NodeDataLoader(graph, ids, 5)",
        "TypeError", "sampler", "= 5", "expected a list", "MultiLayerNeighborSampler",
    ),
    Mistake(
        "a keyword of DGL's loader is misspelt",
        STANDALONE + "gd.NodeDataLoader(graph, ids, [5], shufle=True)",
        "TypeError", "shufle", "NodeDataLoader", "no argument", "did you mean shuffle?",
    ),
    Mistake(
        "a table that the graph does not have",
        STANDALONE + "graph.ndata['feat2']",
        "KeyError", "data of nodes", "no 'feat2'", "there are ['x'",
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", PLACES + SERVERS + GRAPHS, ids=lambda mistake: mistake.name)
def test_several_processes(mistake, ended):
    mistake.judge(ended("train.py", script=f"PORT = {free_port()}\n{mistake.script()}"), line=2)


COMMANDS = {
    "serve --partition nowhere --servers 1 --rank 0": (2, "--partition", "'nowhere' is no directory"),
    "serve --partition parts --servers 1 --rank 1": (2, "--rank", "expected 0 to 0"),
    "serve --partitions parts --servers 1 --rank 0": (2, "--partition", ""),
    "inspect nowhere": (1, "nowhere", "expected what a partitioner wrote"),
    "train train.py": (2, "'train'", "choose from"),
}


@pytest.mark.parametrize("words", COMMANDS)
def test_commands(words, ended):
    status, argument, expected = COMMANDS[words]
    done = ended("-m", "glt", *words.split())
    assert done.returncode == status and "Traceback" not in done.stderr, f"{done.returncode}\n{done.stderr}"
    assert argument in done.stderr and expected in done.stderr, done.stderr


def test_ctrl_c_ends_a_loop_over_sampling_processes(ended):
    """The signal goes to all processes of the terminal."""
    loop = f"for batch in {LOADER}:\n    os.killpg(0, signal.SIGINT)\n"
    done = ended("train.py", script=f"{BEGIN}PORT = 0\nos.setsid()\n{ALONE.replace('PORT', '29500')}{loop}")
    assert done.returncode != 0 and done.stderr.rstrip().endswith("KeyboardInterrupt"), done.stderr


def test_sampling_processes_need_no_main_guard(ended):
    """They do not run the script again, as those of multiprocessing do."""
    done = ended("train.py", script=f"{BEGIN}{ALONE.replace('PORT', '29500')}print(len(list({LOADER})))\n")
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


def test_trainers_without_a_main_guard(ended):
    spawn = "def train(rank):\n    gd.init_worker_group(2, rank)\n\ntorch.multiprocessing.spawn(train, nprocs=2)\n"
    done = ended("train.py", script=BEGIN + spawn)
    assert done.returncode != 0 and "if __name__ == '__main__'" in done.stderr, done.stderr
