"""``python test/campaign [PART ...] [--only WORDS] [--seconds 1200] [--seed N] [--toy]``: hostile connections, kills,
freezes, damaged files, sanitizers.

Prints what was tried, what held and what failed; the exit status is 1 if anything failed.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "test" / "distributed"), str(ROOT / "test"), str(ROOT)]
# For the fork server of clusters, which is not given sys.path.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path[:4], os.environ.get("PYTHONPATH")]))

import kills_part  # noqa: E402
import native_part  # noqa: E402
import service_part  # noqa: E402
import soak_part  # noqa: E402
import wire_part  # noqa: E402
from score import Clock, Score  # noqa: E402

from glt.distributed.wire.addresses import allow_descriptors  # noqa: E402
from glt.testing.cluster import Cluster  # noqa: E402

PARTS = {
    "wire": (wire_part.run, 1.0),
    "services": (service_part.run, 2.0),
    "kills": (kills_part.run, 6.0),
    "soak": (soak_part.run, 3.0),
    "damage": (native_part.damage, 3.0),
    "sanitizers": (native_part.sanitizers, 1.0),  # takes what it takes
}
"""What each runs, and its weight in the time."""

_TOY_CONNECTIONS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile connections, kills, freezes, damage: tried, held, failed.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)} (default: all)")
    default_s = float(os.environ.get("CAMPAIGN_S") or 1200.0)
    parser.add_argument(
        "--seconds", type=float, default=default_s, help="about how long (default: CAMPAIGN_S, or 1200)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of all random choices (default: another each time)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORDS",
        help="what has these words in its name, as the table has it",
    )
    parser.add_argument("--most", type=int, default=1 << 30, metavar="N", help="connections, kills, freezes of a kind")
    parser.add_argument("--toy", action="store_true", help="a few connections each: shows that the campaign runs")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    allow_descriptors()
    # Sampling processes are forked, as in the tests: the time goes into what is tried.
    Cluster.__init__.__kwdefaults__["preload"] += ("forked_trainers", "players", "stand_in", "soaker")
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    score = Score(seed, tuple(options.only))
    print(f"campaign: --seed {score.seed}, {options.seconds:g} s", flush=True)
    names, began, clock = options.parts or list(PARTS), time.monotonic(), Clock(options.seconds)
    left = sum(PARTS[name][1] for name in names)
    try:
        for name in names:
            run, weight = PARTS[name]
            run(score, clock.share(weight / left), _TOY_CONNECTIONS if options.toy else options.most, options.toy)
            left -= weight
    finally:  # also when it is interrupted
        score.print()
        print(f"campaign: {time.monotonic() - began:.0f} s, {score.num_failed} failed")
    return 1 if score.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
