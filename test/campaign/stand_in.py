"""Stand-ins of a server and of a client that speak over the wire alone: what comes is sent back, each byte changed.

They are actors of a cluster, and do what the campaign tells them by name.
"""

import threading

import torch
from actors import Pace

from glt import _deadlines as deadlines
from glt.distributed.wire.addresses import allow_descriptors
from glt.distributed.wire.credentials import Credentials, set_credentials
from glt.distributed.wire.handshake import dial, introduce
from glt.distributed.wire.listener import Listener, LocalListener
from glt.distributed.wire.threads import call_on_loop
from glt.errors import GltError

MOST_BYTES = 8 << 20


class StandIn:
    def __init__(self, trainer) -> None:
        self.error = None
        self.count, self._pace = 0, Pace(0.05)
        self._listeners: list[Listener] = []

    def lower(self, credentials, **constants):
        for name, value in constants.items():
            getattr(deadlines, name)  # one that there is
            setattr(deadlines, name, value)
        set_credentials(Credentials.from_json(credentials))

    # -- as the server ---------------------------------------------------------------------------------------------

    def listen(self):
        """Listens at a port and a Unix socket; returns both."""
        allow_descriptors()

        async def welcome(connection, hello):
            if hello["kind"] != "stand-in":
                raise ValueError(f"kind = {hello['kind']!r}")
            secret = hello["secret"]

            def answer(frame):
                if frame.value["secret"] != secret:
                    raise ValueError("another secret")
                data = () if frame.data is None else (frame.data ^ 0x5A,)
                connection.send({"count": int(frame.value["count"]) + 1}, data, what=frame.what, number=frame.number)

            connection.send(introduce("stand-in"))
            connection.start(answer, lambda error: None, max_data_bytes=MOST_BYTES, silence_s=deadlines.LEASE_S)

        port, local = Listener(("127.0.0.1", 0), "server 0", ("127.0.0.1", 1), welcome), LocalListener(welcome)
        self._listeners = [port, local]
        for each in self._listeners:
            each.open()
        return port.address, local.name

    # -- as the client ---------------------------------------------------------------------------------------------

    def go(self, address, seed):
        """Asks for ever, on a thread, and compares what comes; now and then over a new connection."""
        threading.Thread(target=self._ask, args=(address, seed), daemon=True).start()

    def _ask(self, address, seed):
        generator = torch.Generator().manual_seed(seed)
        try:
            while True:
                self._ask_over_one(address, generator)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _ask_over_one(self, address, generator):
        address = tuple(address) if isinstance(address, list) else address
        connection, _ = dial(address, "server 0", introduce("stand-in", secret="s"), 20.0)
        came, found = threading.Event(), []

        def take(frame):
            found.append(frame)
            came.set()

        def end(error):
            found.append(error)
            came.set()

        call_on_loop(lambda: connection.start(take, end, max_data_bytes=MOST_BYTES, silence_s=deadlines.STUCK_S))
        for number in range(1, 200):
            most = 1 << int(torch.randint(1, 21, (1,), generator=generator))
            data = torch.randint(256, (most,), dtype=torch.uint8, generator=generator)
            connection.send({"secret": "s", "count": number}, [data], what=7, number=number)
            if not came.wait(30.0):
                raise TimeoutError(f"no answer of server 0 to call {number}")
            came.clear()
            (got,) = found
            found.clear()
            if isinstance(got, GltError):
                raise got
            right = got.what == 7 and got.number == number and got.value == {"count": number + 1}
            if not (right and torch.equal(got.data, data ^ 0x5A)):
                raise ValueError(f"call {number} was answered wrongly: {got.value}")
            self.count += 1
            self._pace.wait()
        connection.close()

    def counted(self, more=0):
        """Right answers so far, of which ``more`` are waited for; raises what went wrong."""
        self._pace.ask(more)
        if self.error is not None:
            raise AssertionError(self.error)
        return self.count
