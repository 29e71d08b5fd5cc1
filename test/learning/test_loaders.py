"""Models learn from the loaders' batches."""

from dataclasses import replace
from statistics import mean

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch_geometric import seed_everything
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.typing import WITH_PYG_LIB

import glt.loader
from benchmarks.bench_labor_learning import SAMPLERS, learn
from benchmarks.learning import COURSES, distributed_accuracies, full_accuracy
from benchmarks.learning_contract import (
    CLASSIFICATION,
    DATA_ROOT,
    PREDICTION,
    classification,
    classify,
    predict,
    prediction,
    read_classification,
    read_prediction,
)

pytestmark = [pytest.mark.shared, pytest.mark.skipif(not DATA_ROOT.is_dir(), reason=f"{DATA_ROOT} is absent")]


@pytest.fixture(autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


MAX_FEATURES = 256
ACM = CLASSIFICATION[1]
CORA = replace(PREDICTION[0], epochs=6, num_neighbors=(5, 5))
SEEDS = (0, 1)
# One initialisation in eight ends up to 7 points lower, whichever loader: 3 points is what a mean of few can promise.
TOLERANCE = 0.03


def full_classification(data, target, num_classes, lesson, seed):
    """Test accuracy after training on the whole graph: no loader at all."""
    for node_type in data.node_types:
        data[node_type].n_id = torch.arange(data[node_type].num_nodes)
    torch.manual_seed(seed)
    model = classification.Model(data, 64, num_classes)
    with torch.no_grad():
        model(data)  # the lazy layers draw their weights
    optimizer = torch.optim.Adam(model.parameters(), lr=lesson.lr, weight_decay=5e-4)
    y, train, test = data[target].y, data[target].train_mask.nonzero().view(-1), data[target].test_mask
    for _ in range(lesson.epochs):
        for seeds in train[torch.randperm(len(train))].split(lesson.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(data)[target][seeds], y[seeds]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(data)[target].argmax(dim=1) == y)[test].float().mean().item()


def full_prediction(data, lesson, seed):
    """Test AUC after training on the whole graph of training links, against any pairs."""
    seed_everything(seed)
    split = RandomLinkSplit(0.0, 0.1, is_undirected=True, add_negative_train_samples=False, split_labels=False)
    train, _, test = split(data)
    links = train.edge_label_index
    links = links[:, torch.randperm(links.size(1))[: lesson.max_links]]
    held = torch.randperm(test.edge_label.numel())[: lesson.max_links // 2]
    model = prediction.LinkPredictor(data.num_features, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=lesson.lr)
    for _ in range(lesson.epochs):
        for chosen in torch.randperm(links.size(1)).split(lesson.batch_size):
            pairs = [links[:, chosen], torch.randint(data.num_nodes, (2, len(chosen)))]
            train.edge_label_index = torch.cat(pairs, dim=1)
            label = torch.cat([torch.ones(len(chosen)), torch.zeros(len(chosen))])
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(train), label).backward()
            optimizer.step()
    test.edge_label_index, test.edge_label = test.edge_label_index[:, held], test.edge_label[held]
    return prediction.evaluate(model.eval(), [test])


@pytest.fixture(scope="module")
def acm():
    return read_classification(DATA_ROOT, ACM.name)


@pytest.fixture(scope="module")
def cora():
    data = read_prediction(DATA_ROOT, CORA.name)
    frequent = (
        data.x.var(dim=0).topk(MAX_FEATURES).indices
    )  # wide bags of words cost time on both sides and decide nothing
    data.x = F.normalize(data.x[:, frequent])
    return data


def test_heterogeneous_classification_reaches_what_the_model_can(acm):
    sampled = [classify(glt.loader, *acm, ACM, seed) for seed in range(6)]
    if WITH_PYG_LIB:
        peer = [classify(torch_geometric.loader, *acm, ACM, seed) for seed in range(6)]
    else:
        peer = [full_classification(*acm, ACM, seed) for seed in SEEDS]
    assert mean(peer) > 0.8, f"the baseline has not learned: {peer}"
    assert mean(sampled) >= mean(peer) - TOLERANCE, f"glt {sampled}, peer {peer}"


def test_link_prediction_reaches_what_the_model_can(cora):
    sampled = [predict(glt.loader, cora, CORA, seed) for seed in SEEDS]
    if WITH_PYG_LIB:
        peer = [predict(torch_geometric.loader, cora, CORA, seed) for seed in SEEDS]
    else:
        peer = [full_prediction(cora, CORA, seed) for seed in SEEDS]
    assert mean(peer) > 0.8, f"the baseline has not learned: {peer}"
    assert mean(sampled) >= mean(peer) - TOLERANCE, f"glt {sampled}, peer {peer}"


def test_keeping_the_links_to_predict_out_of_sight_costs_nothing_in_test_auc(cora):
    # Links in sight are no help at test time: what training learns from them is to look for them.
    hidden = mean(predict(glt.loader, cora, CORA, seed, exclude_edges="reverse") for seed in SEEDS)
    shown = mean(predict(glt.loader, cora, CORA, seed) for seed in SEEDS)
    assert hidden > 0.8 and hidden >= shown - 0.01, f"hidden {hidden}, shown {shown}"


NUM_SEEDS = 3


@pytest.fixture(scope="module")
def tasks():
    return {course: course.read(DATA_ROOT) for course in COURSES}


@pytest.fixture(scope="module")
def distributed(tasks):
    """All courses in one job: starting its processes costs more than the smallest course."""
    return distributed_accuracies(tasks, NUM_SEEDS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.name)
def test_accuracy_is_within_one_point_of_full_neighbourhoods(course, tasks, distributed):
    # Paired: initial weights and the seeds of every step agree, so that only sampling differs. Measured differences are
    # +0.2, -0.2 and -0.3 points, with standard errors of 0.1, 0.1 and 0.3 over the three initialisations; with all
    # neighbours in place of 15 and 10 the accuracies are equal.
    full = [full_accuracy(tasks[course], course, seed) for seed in range(NUM_SEEDS)]
    sampled = distributed[course.name]
    assert mean(full) > 0.7, f"{course.name}: the baseline has not learned: {full}"
    assert abs(mean(sampled) - mean(full)) <= 0.01, f"{course.name}: distributed {sampled}, full neighbourhoods {full}"


def test_labor_learns_what_drawing_does():
    # Paired by initialisation, as in benchmarks/bench_labor_learning.py: over thirty of them the differences are 0.0
    # and -0.1 points, with a deviation of 0.7 between one and another. Three are within 1.5 points, four errors.
    course = next(each for each in COURSES if each.name == "amazon_computers")
    task = course.read(DATA_ROOT)
    found = {name: [learn(task, course, seed, **how) for seed in range(3)] for name, how in SAMPLERS.items()}
    accuracy = {name: mean(each for each, _ in of_seeds) for name, of_seeds in found.items()}
    num_nodes = {name: mean(each for _, each in of_seeds) for name, of_seeds in found.items()}
    assert accuracy["neighbor"] > 0.8, f"the baseline has not learned: {found}"
    for name in accuracy.keys() - {"neighbor"}:
        assert abs(accuracy[name] - accuracy["neighbor"]) <= 0.015, f"{name}: {found}"
        assert num_nodes[name] < 0.7 * num_nodes["neighbor"], f"{name}: {found}"
