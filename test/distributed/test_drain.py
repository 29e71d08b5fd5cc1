"""The end of a process waits for the threads that end its loaders, to their very end."""

import os
import threading

from glt.distributed.loader import drain


class SlowToGo:
    """Samplers of which the last to hold them lets go, and that takes its time, as freeing many tensors does."""

    def __init__(self):
        self.left, self.going, self.may_go = threading.Event(), threading.Event(), threading.Event()

    def drain(self): ...

    def close(self, all_finished=False):
        assert self.left.wait(30)

    def __del__(self):
        self.going.set()
        assert self.may_go.wait(30)


def test_a_process_does_not_end_while_samplers_of_a_loader_are_let_go_of():
    """A daemon thread that frees a tensor while the interpreter ends dies in the middle of a destructor: an abort."""
    samplers = SlowToGo()
    left, going, may_go = samplers.left, samplers.going, samplers.may_go
    drain.abandon(samplers, None, os.getpid())
    del samplers  # the thread has the last of them
    left.set()
    assert going.wait(30)
    end = threading.Thread(target=drain._wait)
    end.start()
    end.join(0.3)
    is_waiting = end.is_alive()
    may_go.set()
    end.join(30)
    assert is_waiting and not end.is_alive()
