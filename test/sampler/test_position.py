"""Where a loader stands, whatever its user does next."""

import pytest

from glt.sampler.order import Position


def test_what_is_in_hand_counts_and_the_end_of_an_epoch_is_the_start_of_the_next():
    position = Position()
    assert position.next_batch == (0, 0)
    begun = position.begin(2)
    assert (begun.iteration, begun.epoch, begun.first) == (1, 0, 0) and position.next_batch == (0, 0)
    position.deliver(begun, 0)
    assert position.next_batch == (0, 1)
    position.deliver(begun, 1)
    assert position.next_batch == (1, 0)
    assert (position.begin(2).epoch, position.next_batch) == (1, (1, 0))


def test_an_epoch_that_was_left_early_is_unfinished_until_the_next_begins():
    position = Position()
    left = position.begin(3)
    position.deliver(left, 0)
    assert position.next_batch == (0, 1)
    newer = position.begin(3)
    assert (newer.epoch, newer.first) == (1, 0)
    position.deliver(left, 1)  # it goes on, but no longer counts
    position.end(left)
    assert position.next_batch == (1, 0)


def test_resuming_begins_in_the_middle_once():
    position = Position()
    running = position.begin(5)
    position.resume(7, 3)
    assert position.next_batch == (7, 3) and position.iteration > running.iteration
    position.deliver(running, 0)
    assert position.next_batch == (7, 3)
    begun = position.begin(5)
    assert (begun.epoch, begun.first, position.next_batch) == (7, 3, (7, 3))
    position.deliver(begun, 4)
    assert position.next_batch == (8, 0) and position.begin(5).first == 0


def test_set_epoch_forgets_where_it_was_but_not_what_still_runs():
    position = Position()
    position.resume(7, 3)
    position.set_epoch(2)
    assert position.next_batch == (2, 0)
    begun = position.begin(5)
    position.deliver(begun, 0)
    position.set_epoch(9)
    assert position.next_batch == (9, 0)
    position.deliver(begun, 1)
    assert position.next_batch == (2, 2)
    position.deliver(begun, 4)
    assert position.next_batch == (9, 0)


@pytest.mark.parametrize("num_batches", [0, None])
def test_epochs_without_batches_and_of_unknown_length(num_batches):
    position = Position()
    begun = position.begin(num_batches)
    assert position.next_batch == ((1, 0) if num_batches == 0 else (0, 0))
    position.end(begun)
    assert position.next_batch == (1, 0)
