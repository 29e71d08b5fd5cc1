"""``python test/campaign [PART ...] [--seconds 1200] [--seed N] [--toy]``: hostile connections, kills and freezes.

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

import kills_part  # noqa: E402
import service_part  # noqa: E402
import wire_part  # noqa: E402
from score import Clock, Score  # noqa: E402

from glt.testing.cluster import Cluster  # noqa: E402

PARTS = {"wire": (wire_part.run, 1.0), "services": (service_part.run, 2.0), "kills": (kills_part.run, 2.0)}
"""What each runs, and its weight in the time."""

_TOY_CONNECTIONS = 12


def main() -> int:
    parser = argparse.ArgumentParser(description="Hostile connections, kills and freezes: tried, held, failed.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"which: {', '.join(PARTS)} (default: all)")
    default_s = float(os.environ.get("CAMPAIGN_S") or 1200.0)
    parser.add_argument(
        "--seconds", type=float, default=default_s, help="about how long (default: CAMPAIGN_S, or 1200)"
    )
    parser.add_argument("--seed", type=int, default=None, help="of all random choices (default: another each time)")
    parser.add_argument("--toy", action="store_true", help="a few connections each: shows that the campaign runs")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # Sampling processes are forked, as in the tests: the time goes into what is tried.
    Cluster.__init__.__kwdefaults__["preload"] += ("forked_trainers", "players", "stand_in")
    score = Score(random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed)
    print(f"campaign: --seed {score.seed}, {options.seconds:g} s", flush=True)
    names, began, clock = options.parts or list(PARTS), time.monotonic(), Clock(options.seconds)
    left = sum(PARTS[name][1] for name in names)
    for name in names:
        run, weight = PARTS[name]
        run(score, clock.share(weight / left), _TOY_CONNECTIONS if options.toy else 1 << 30, options.toy)
        left -= weight
    score.print()
    print(f"campaign: {time.monotonic() - began:.0f} s, {score.num_failed} failed")
    return 1 if score.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
