"""A program in the place of a sampling process: it says, keeps and does what its owner tells it."""

import os
import time

from glt.distributed.engine.processes import run_program


class StandIn:
    def __init__(self, owner):
        self.owner = owner

    def obey(self, command, fds):
        if "say" in command:
            self.owner.say(command["say"])
        if "fail" in command:
            raise ValueError(command["fail"])
        if "hang" in command:  # not even an exit is heard of
            self.owner.say({"hangs": True})
            time.sleep(600)
        for fd in fds:
            os.write(fd, b"here")
            os.close(fd)

    def beat(self):
        self.owner.beat()


def start(owner, spec):
    if "fail" in spec:
        raise LookupError(spec["fail"])
    if "told" in spec:
        owner.say({"told": len(spec["told"])})
    return StandIn(owner)


if __name__ == "__main__":
    run_program(start)
