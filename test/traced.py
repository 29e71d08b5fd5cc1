"""What every trace of a loader must be, whatever made its batches."""

import json
from collections import Counter
from pathlib import Path


def ns(us):
    return round(us * 1000)


def read(path):
    """The events of a trace by name."""
    events = json.loads(Path(path).read_text())
    found = {}
    for event in events:
        if event["ph"] in "XM":
            found.setdefault(event["name"], []).append(event)
        else:
            found.setdefault(event["ph"], []).append(event)
    return found


def span(event):
    return ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])


def is_in(inner, outer):
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def expect_nested(events):
    """On each line an event lies in another, or apart from it."""
    lines = {}
    for event in events:
        if event["ph"] == "X":
            lines.setdefault((event["pid"], event["tid"]), []).append(event)
    for line in lines.values():
        open_until = []
        for event in sorted(line, key=lambda each: (span(each)[0], -span(each)[1])):
            begin, end = span(event)
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)


def expect_lives(found, num_batches, stages, pids):
    """Each batch is made, elsewhere than on the trainer's line, and waited for and trained on there, in that order."""
    expect_nested([event for events in found.values() for event in events])
    made, waited, trained = (
        {event["args"]["batch"]: event for event in found[name]} for name in ("batch", "wait for batch", "train")
    )
    assert sorted(made) == sorted(waited) == sorted(trained) == list(range(num_batches))
    assert {event["pid"] for event in made.values()} == set(pids)
    named = {event["pid"] for event in found["process_name"]}
    assert len(named) == len(found["process_name"]) and named >= set(pids)
    begun, ended = ({event["id"]: event for event in found[ph]} for ph in "sf")
    assert begun.keys() == ended.keys() and len(begun) == num_batches
    for index, event in made.items():
        assert span(event)[1] <= span(waited[index])[1] <= span(trained[index])[0]
        line = event["pid"], event["tid"]
        (arrow,) = [
            each
            for each in begun.values()
            if (each["pid"], each["tid"]) == line and span(event)[0] <= ns(each["ts"]) <= span(event)[1]
        ]
        at = ended[arrow["id"]]
        assert (at["pid"], at["tid"]) == (waited[index]["pid"], waited[index]["tid"])
        assert span(waited[index])[0] <= ns(at["ts"]) <= span(waited[index])[1]
    for name in stages:
        counts = Counter(event["args"]["batch"] for event in found[name])
        assert sorted(counts) == list(range(num_batches)), name
        for stage in found[name]:
            event = made[stage["args"]["batch"]]
            assert (stage["pid"], stage["tid"]) == (event["pid"], event["tid"]) and is_in(span(stage), span(event))
