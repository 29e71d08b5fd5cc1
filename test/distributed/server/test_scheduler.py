"""Turns between loaders, with loaders that are simulated: who begins how many batches, step by step."""

import random
import threading

import pytest

from glt.distributed.server.stream import FairScheduler


class Simulation:
    """Lanes on one thread: in each step all that are hungry wait, and whoever is next begins a batch."""

    def __init__(self, num_places):
        self.turns = FairScheduler(num_places)
        self.hungry = {}
        self.running = []

    def lane(self, most=4):
        lane = self.turns.add(most, lambda: self.hungry[lane])
        self.hungry[lane] = True
        lane.is_waiting = True
        return lane

    def begin(self):
        """Gives one place to whoever is next."""
        lane = self.turns.next_flow()
        if lane is not None:
            assert self.turns.acquire(lane, lambda: False)
            lane.is_waiting = True  # it comes back for the next batch at once
            self.running.append(lane)
        return lane

    def finish(self, lane):
        self.running.remove(lane)
        self.turns.release(lane)


def begun(lanes):
    return [lane.num_begun for lane in lanes]


@pytest.mark.parametrize("num_lanes", [1, 2, 3, 8, 40])
def test_hungry_lanes_begin_equally_many(num_lanes):
    rng = random.Random(3)
    sim = Simulation(4)
    lanes = [sim.lane() for _ in range(num_lanes)]
    for _ in range(100 * num_lanes):
        while sim.begin() is not None:
            assert len(sim.running) <= 4
        sim.finish(rng.choice(sim.running))  # batches take as long as they like
    counts = begun(lanes)
    assert max(counts) - min(counts) <= 4, counts


def test_a_lane_that_takes_nothing_holds_no_place():
    sim = Simulation(2)
    idle, busy = sim.lane(), sim.lane()
    sim.hungry[idle] = False
    for _ in range(50):
        assert sim.begin() is busy
        sim.finish(busy)
    assert begun([idle, busy]) == [0, 50]


def test_a_lane_that_comes_back_does_not_hold_up_the_others():
    """However long it was away, it gets a few batches more than its share, once."""
    sim = Simulation(1)
    away, busy = sim.lane(), sim.lane()
    sim.hungry[away] = False
    for _ in range(1000):
        sim.finish(sim.begin() or pytest.fail("nobody began"))
    sim.hungry[away] = True
    for _ in range(100):
        sim.finish(sim.begin() or pytest.fail("nobody began"))
    assert 50 <= away.num_begun <= 54, begun([away, busy])


def test_a_lane_that_comes_late_has_no_claims():
    sim = Simulation(1)
    first = sim.lane()
    for _ in range(100):
        sim.finish(sim.begin() or pytest.fail("nobody began"))
    second = sim.lane()
    for _ in range(100):
        sim.finish(sim.begin() or pytest.fail("nobody began"))
    assert abs(second.num_begun - (first.num_begun - 100)) <= 2


def test_a_lane_has_at_most_so_many_in_flight():
    sim = Simulation(8)
    small, large = sim.lane(most=1), sim.lane(most=16)
    while sim.begin() is not None:
        pass
    assert (small.num_running, large.num_running) == (1, 7)


def test_a_lane_that_is_removed_gives_back_its_places():
    sim = Simulation(1)
    lane, other = sim.lane(), sim.lane()
    assert sim.begin() is lane
    sim.turns.remove(lane)
    assert sim.begin() is None
    sim.finish(lane)
    assert sim.begin() is other


def test_waiting_ends_when_it_is_told_to():
    turns = FairScheduler(1)
    lane = turns.add(1, lambda: False)
    stopped = threading.Event()
    results = []
    thread = threading.Thread(target=lambda: results.append(turns.acquire(lane, stopped.is_set, 10.0)))
    thread.start()
    stopped.set()
    turns.interrupt(lane)
    thread.join(60)
    assert results == [False]


def test_a_change_wakes_the_lane_that_is_next_and_no_other():
    """With 200 lanes that wait, waking all for each batch took all the CPU time that there was."""
    sim = Simulation(1)
    lanes = [sim.lane(most=1) for _ in range(200)]
    woken = []
    for lane in lanes:
        lane.turn.notify_all = lambda lane=lane: woken.append(lane)
    assert sim.begin() is lanes[0]
    woken.clear()
    sim.finish(lanes[0])
    assert woken == [lanes[1]]
    assert sim.begin() is lanes[1]
    sim.hungry[lanes[2]] = False
    woken.clear()
    sim.finish(lanes[1])
    assert woken == [lanes[3]]
    woken.clear()
    sim.turns.look_again()
    assert woken == [lanes[3]]


def test_few_are_asked_whether_they_may_begin():
    turns, asked = FairScheduler(1), []
    lanes = [turns.add(1, lambda i=i: asked.append(i) or True) for i in range(200)]
    for lane in lanes:
        lane.is_waiting = True
    assert turns.next_flow() is lanes[0]
    assert asked == [0]


def test_places_below_one_are_refused():
    with pytest.raises(ValueError, match="num_places = 0"):
        FairScheduler(0)


def test_threads_share_equally():
    """The real thing: threads that come for turns, and give them back from another thread."""
    turns, counts = FairScheduler(2), [0] * 4
    until = 200

    def live(index, lane, is_over):
        while turns.acquire(lane, is_over):
            counts[index] += 1
            turns.release(lane)

    lanes = [turns.add(2, lambda: True) for _ in counts]
    threads = [
        threading.Thread(target=live, args=(i, lane, lambda: max(counts) >= until)) for i, lane in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(counts) == until
