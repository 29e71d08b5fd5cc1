"""How two processes begin to talk, and every way in which they do not; the port where they meet."""

import asyncio
import itertools
import json
import logging
import os
import re
import resource
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from promptness import eventually, expect_prompt
from wire_ends import LONG_S, on_loop

import glt
from glt import _deadlines as deadlines
from glt.distributed.wire import connection as connection_module
from glt.distributed.wire import handshake, listener
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.credentials import Credentials, Token
from glt.distributed.wire.handshake import (
    NotProven,
    ask_for_proof,
    dial,
    introduce,
    prove_to_server,
    require_same_version,
)
from glt.distributed.wire.listener import Listener, LocalListener
from glt.distributed.wire.threads import wait_for
from glt.errors import ConnectionLost, GltError, PeerLost, RendezvousError
from glt.testing.cluster import free_port

GREETING = struct.Struct("<HB32s")


@pytest.fixture
def listen():
    """Listens on a port; each connection is treated by the next of some coroutines, further ones by the last."""
    made, kept = [], []

    def start(*answers, port=0):
        made.append(socket.create_server(("127.0.0.1", port)))

        def accept(server):
            for answer in itertools.chain(answers, itertools.repeat(answers[-1])):
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                kept.append(Connection(sock, "a client"))
                wait_for(answer(kept[-1]), LONG_S)

        threading.Thread(target=accept, args=made[-1:], daemon=True).start()
        return made[-1].getsockname()[1]

    yield start
    for each in made:
        each.shutdown(socket.SHUT_RDWR)
        each.close()
    for each in kept:
        each.close()


async def hang_up(connection):
    connection.close()


async def keep_quiet(connection):
    pass


async def answer_http(connection):
    connection.socket.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def speak_another_protocol(connection):
    connection.greet(GREETING.pack(77, 0, bytes(32)))


def say(value):
    async def answer(connection):
        await ask_for_proof(connection, Credentials(), time.monotonic() + LONG_S)
        await connection.receive(LONG_S)
        connection.send(value)

    return answer


welcome = say(introduce("client", more="told"))


def greet(port, timeout_s=20.0, retry=True):
    connection, answer = dial(("127.0.0.1", port), "server 3", introduce("client"), timeout_s, retry=retry)
    connection.close()
    return answer


def test_they_meet(listen):
    answer = greet(listen(welcome))
    assert answer["more"] == "told" and answer["version"] == glt.__version__ and answer["host"] == socket.gethostname()


def test_it_is_tried_until_somebody_is_there(listen):
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(greet, port, 60.0)
        time.sleep(0.3)
        listen(hang_up, hang_up, say({"refused": "soon", "is_ending": True}), welcome, port=port)
        assert answer.result(60)["more"] == "told"


def test_a_server_that_is_not_ready_yet_is_waited_for(monkeypatch):
    """It listens, and takes connections later, when its samplers have come up."""
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 0.3)

    async def answer(connection, hello):
        connection.send(introduce("client", more="told"))
        connection.part()

    server = Listener(("127.0.0.1", 0), "server 3", ("127.0.0.1", 1), answer)
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(greet, server.address[1], 60.0)
        time.sleep(1.0)
        assert not answered.done()
        monkeypatch.undo()
        server.open()
        assert answered.result(60)["more"] == "told"
    server.close()


@pytest.mark.parametrize("listens", [False, True])
def test_who_waits_says_every_few_seconds_for_what(listens, monkeypatch, caplog):
    """For a server that is not there yet, or was killed; for one that is not ready, or is stopped."""
    monkeypatch.setattr(deadlines, "HINT_S", 0.2)
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 0.3)
    server = Listener(("127.0.0.1", 0), "server 3", ("127.0.0.1", 1), keep_quiet) if listens else None
    with pytest.raises(RendezvousError):
        greet(free_port() if server is None else server.address[1], 2.5)
    if server is not None:
        server.close()
    said = "has not answered yet" if listens else "is not reached at"
    assert len(re.findall(rf"server 3 .*{said}.*; waiting for up to \d s more", caplog.text)) >= 2


@pytest.mark.parametrize(
    ("answer", "timeout_s", "words"),
    [
        (None, 0.3, ["was not reached", "within 0.3 s", "master_port"]),
        (hang_up, 0.5, ["server 3", "ended during the handshake"]),
        (say({"refused": "you are late"}), 20.0, ["server 3", "refused: you are late"]),
        (say({"refused": "it ends", "is_ending": True}), 0.5, ["refused: it ends"]),
        (say({"hello": 1}), 20.0, ["no server of glt", "['hello']"]),
        (speak_another_protocol, 20.0, ["protocol 77", "install the same glt"]),
        (say({**introduce("client"), "version": "0.0.1"}), 20.0, ["glt 0.0.1", glt.__version__]),
        (answer_http, 20.0, ["no server of glt"]),
        (keep_quiet, 0.3, ["gave no answer"]),
    ],
    ids=["nobody", "hangs up", "refuses", "ends", "no handshake", "protocol", "version", "http", "silent"],
)
def test_they_do_not_meet(listen, answer, timeout_s, words, monkeypatch):
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 1.0)
    port = free_port() if answer is None else listen(answer)
    start = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        greet(port, timeout_s)
    expect_prompt(time.monotonic() - start, "to give up")
    assert all(word in str(caught.value) for word in words), caught.value


def test_without_patience(listen):
    for port, words in ((free_port(), "cannot be reached"), (listen(hang_up), "ended during the handshake")):
        with pytest.raises(PeerLost, match=words):
            greet(port, retry=False)
    with pytest.raises(RendezvousError, match="there is no host"):
        dial(("no-such-host.invalid", 1), "server 0", introduce("client"), 5.0)


def test_versions_differ_in_the_last_place_only(monkeypatch):
    monkeypatch.setattr(glt, "__version__", "3.4.5")
    for version in ("3.4.5", "3.4.9", "3.4"):
        require_same_version({"version": version}, "they")
    for theirs in ({}, {"version": "3.5.5"}, {"version": None}):
        with pytest.raises(GltError, match="they runs glt"):
            require_same_version(theirs, "they")


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path):
    """Credentials by name: of a job's write token and of its read token, of another job's, and without one."""
    write = Token.new()
    found = {"none": Credentials()}
    for name, token in (("write", write), ("read", write.for_reading()), ("other", Token.new())):
        token.write(tmp_path / name)
        found[name] = Credentials(str(tmp_path / name))
    return found


class Meeting:
    """A client and a server of which each has its own credentials."""

    def __init__(self, of_client, of_server):
        ends = socket.socketpair()
        self.client, self.server = Connection(ends[0], "the server"), Connection(ends[1], "the client")

        async def both():
            until_s = time.monotonic() + LONG_S

            async def client():
                try:
                    await prove_to_server(self.client, of_client, until_s)
                except NotProven:
                    self.client.close()
                    raise
                self.client.send({"said": "hello"})

            async def server():
                try:
                    await ask_for_proof(self.server, of_server, until_s)
                    return await self.server.receive(LONG_S)
                except NotProven as error:
                    handshake.refuse(self.server, str(error))
                    raise

            return await asyncio.gather(client(), server(), return_exceptions=True)

        self.errors = wait_for(both(), LONG_S)
        self.client.close()
        self.server.close()
        on_loop(lambda: None)


@pytest.mark.parametrize(
    ("client", "server", "may_write"),
    [("none", "none", True), ("write", "write", True), ("read", "write", False), ("read", "read", False)],
)
def test_who_has_the_token_may_speak(tokens, client, server, may_write):
    met = Meeting(tokens[client], tokens[server])
    assert met.errors == [None, {"said": "hello"}] and met.server.may_write is may_write


@pytest.mark.parametrize(
    ("client", "server", "of_client", "of_server"),
    [
        ("none", "write", None, "a token is asked for here: give --token-file"),
        ("other", "write", "the server refused: the token is another one", "the token is another one than here"),
        ("write", "other", "the server refused: the token is another one", "the token is another one than here"),
        ("write", "read", "has the read token only", "this process has the read token only"),
        ("write", "none", "it asks for no token, and this process has one", None),
        ("read", "none", "it asks for no token, and this process has one", None),
    ],
)
def test_who_has_another_or_none_may_not(tokens, client, server, of_client, of_server):
    met = Meeting(tokens[client], tokens[server])
    for error, words in zip(met.errors, (of_client, of_server), strict=True):
        assert words is None or (isinstance(error, GltError) and words in str(error)), met.errors


def test_a_server_that_has_no_token_cannot_pretend_to(tokens):
    """It asks for the proof, and answers with what it was told, or with anything."""

    async def pretend(connection, repeat):
        theirs = await connection.receive_greeting(LONG_S)
        connection.greet(GREETING.pack(2, 1, theirs[-32:]))
        proof = await connection.receive_greeting(LONG_S)
        connection.greet(proof if repeat else bytes(32))

    for repeat in (True, False):
        ends = socket.socketpair()
        client, server = Connection(ends[0], "the server"), Connection(ends[1], "the client")

        async def both(client=client, server=server, repeat=repeat):
            until_s = time.monotonic() + LONG_S
            await asyncio.gather(prove_to_server(client, tokens["write"], until_s), pretend(server, repeat))

        with pytest.raises(NotProven, match="it does not have the token"):
            wait_for(both(), LONG_S)
        client.close()
        server.close()


class Wire:
    """A plain socket that speaks with a port frame by frame, and keeps what it has said."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=LONG_S)

    def say(self, data, kind=2):
        self.socket.sendall(struct.pack("<4sBB2xIQQ", b"GLT2", kind, 0, 0, 0, len(data)) + data)

    def hear(self):
        magic, _, _, num_json, _, num_data = struct.unpack("<4sBB2xIQQ", self._exactly(28))
        assert magic == b"GLT2"
        return self._exactly(num_json + num_data)

    def _exactly(self, length):
        got = b""
        while len(got) < length and (more := self.socket.recv(length - len(got))):
            got += more
        return got


@pytest.fixture
def open_port(monkeypatch):
    """Makes a port, with credentials of its own; connections are given to ``welcome``, or answered and closed."""
    made = []

    async def answer(connection, hello):
        connection.send(introduce("client", may_write=connection.may_write))
        connection.part()

    def start(welcome=answer, is_open=True, credentials=None):
        if credentials is not None:
            monkeypatch.setattr(listener, "current_credentials", lambda: credentials)
        made.append(Listener(("127.0.0.1", 0), "server 0", ("127.0.0.1", 1), welcome))
        if is_open:
            made[-1].open()
        return made[-1]

    yield start
    for each in made:
        each.close()
    on_loop(lambda: None)


@pytest.fixture
def say_hello(monkeypatch):
    """Connects to a port as a client and hangs up; returns the answer."""

    def say_hello(port, credentials=None, retry=False, **more):
        if credentials is not None:
            monkeypatch.setattr(handshake, "current_credentials", lambda: credentials)
        connection, answer = dial(port.address, "server 0", introduce("client", **more), 20.0, retry=retry)
        connection.close()
        return answer

    return say_hello


def test_a_port_that_asks_for_a_token(open_port, say_hello, tokens):
    here = open_port(credentials=tokens["write"])
    assert say_hello(here, tokens["write"])["may_write"] is True
    assert say_hello(here, tokens["read"])["may_write"] is False
    for name, words in (("none", "a token is asked for here"), ("other", "the token is another one than here")):
        start = time.monotonic()
        with pytest.raises(RendezvousError, match=f"refused: {words}"):
            say_hello(here, tokens[name], retry=True)
        expect_prompt(time.monotonic() - start, "a refusal")


def test_a_proof_that_is_played_again_is_refused(open_port, tokens):
    here = open_port(credentials=tokens["write"])
    token = tokens["write"].token()
    mine = GREETING.pack(2, 2, b"r" * 32)
    first, second = Wire(here.address), Wire(here.address)
    first.say(mine)
    proof = token.prove(b"client", mine + first.hear())
    first.say(proof)
    assert len(first.hear()) == 32  # it was right
    second.say(mine)
    second.hear()
    second.say(proof)
    assert b"the token is another one" in second.hear()
    for each in (first, second):
        each.socket.close()


def test_nothing_is_read_before_the_proof(open_port, tokens, caplog):
    """A hello that comes in place of it is refused unread."""
    heard = []

    async def hear(connection, hello):
        heard.append(hello)

    here = open_port(hear, credentials=tokens["write"])
    stranger = Wire(here.address)
    stranger.say(GREETING.pack(2, 2, bytes(32)))
    stranger.hear()
    hello = b'{"kind": "client"}'
    stranger.socket.sendall(struct.pack("<4sBB2xIQQ", b"GLT2", 1, 0, len(hello), 0, 0) + hello)
    assert stranger.socket.recv(1) == b"" and not heard
    stranger.socket.close()


def test_a_token_that_is_replaced_counts_from_then_on(open_port, say_hello, tokens):
    here = open_port(credentials=tokens["write"])
    os.replace(tokens["other"].token_file, tokens["write"].token_file)
    say_hello(here, tokens["write"])
    os.unlink(tokens["write"].token_file)
    with pytest.raises(ValueError, match=r"token_file = .*write.* cannot be read"):
        say_hello(here)
    with pytest.raises(PeerLost, match="ended during the handshake"):  # the port outlives it
        say_hello(here, tokens["none"])


@pytest.mark.parametrize("require_auth", [False, True])
def test_a_port_beyond_this_host_without_a_token(require_auth, monkeypatch, caplog):
    monkeypatch.setattr(listener, "_warned", set())
    monkeypatch.setattr(listener, "current_credentials", lambda: Credentials(require_auth=require_auth))
    listener.require_proof_beyond("127.0.0.1", "server 1")
    listener.require_proof_beyond("localhost", "server 1")
    assert not caplog.messages
    if require_auth:
        with pytest.raises(RendezvousError, match="server 1 listens at all interfaces and asks for no token"):
            listener.require_proof_beyond("", "server 1")
    else:
        listener.require_proof_beyond("0.0.0.0", "server 1")
        listener.require_proof_beyond("0.0.0.0", "server 1")
        assert caplog.text.count("server 1 listens at 0.0.0.0 and asks for no token") == 1


# -- TLS -------------------------------------------------------------------------------------------------------------


def with_tls(options):
    return Credentials(tls=options)


def test_they_meet_over_tls(open_port, say_hello, certificates, tokens):
    for token in ("none", "write"):
        file = tokens[token].token_file
        here = open_port(credentials=Credentials(file, certificates.tls("good")))
        assert say_hello(here, Credentials(file, certificates.tls()))["may_write"]
        here.close()


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("expired", "certificate has expired"),
        ("other host", "IP address mismatch.*; give server_name=, the name that it is for"),
        ("foreign", "unable to get local issuer certificate.*; give ca=, the authority that signed it"),
        (None, "127.0.0.1"),
    ],
)
def test_a_server_without_a_good_certificate_is_not_spoken_to(
    open_port, say_hello, certificates, foreign_certificates, server, words, caplog
):
    theirs = foreign_certificates.tls("good") if server == "foreign" else certificates.tls(server)
    here = open_port(credentials=with_tls(theirs))
    start = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        say_hello(here, with_tls(certificates.tls()), retry=True)
    expect_prompt(time.monotonic() - start, "to give up")
    assert re.search(words, str(caught.value)) and "handshake of TLS" in str(caught.value)
    if server is None:
        assert "cert = None: a process that listens needs a certificate" in caplog.text
    if server == "other host":  # it is good for the name that it was made for
        say_hello(here, with_tls(certificates.tls(server_name="elsewhere.test")))


def test_clients_show_a_certificate_where_one_is_asked_for(
    open_port, say_hello, certificates, foreign_certificates, caplog
):
    here = open_port(credentials=with_tls(certificates.tls("good", mutual=True)))
    say_hello(here, with_tls(certificates.tls("client")))
    foreign = foreign_certificates.tls("good", ca=certificates.ca)
    for options, words in (
        (certificates.tls(), "certificate required"),
        (foreign, "unknown ca"),
        (certificates.tls("expired"), "certificate expired"),
    ):
        start = time.monotonic()
        with pytest.raises(RendezvousError, match=f"(?i)handshake of TLS .* failed: .*{words}"):
            say_hello(here, with_tls(options), retry=True)
        expect_prompt(time.monotonic() - start, "to give up")
    say_hello(here, with_tls(certificates.tls("client")))


def test_a_certificate_is_looked_at_whenever_a_client_comes(open_port, certificates):
    """TLS lets those resume who have been there, without showing it again: not here."""
    here = open_port(credentials=with_tls(certificates.tls("good", mutual=True)))
    context = certificates.tls("client").context(of_server=False)
    with socket.create_connection(here.address, timeout=LONG_S) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as stranger:
            stranger.sendall(struct.pack("<4sBB2xIQQ", b"GLT2", 2, 0, 0, 0, 35) + GREETING.pack(2, 0, bytes(32)))
            assert stranger.recv(4) == b"GLT2"
            assert stranger.session is None or not stranger.session.has_ticket


def test_certificates_are_replaced_without_a_restart(open_port, certificates, monkeypatch):
    certificates.issue("rotated")
    here = open_port(credentials=with_tls(certificates.tls("rotated")))
    monkeypatch.setattr(handshake, "current_credentials", lambda: with_tls(certificates.tls()))

    def shown():
        connection, _ = dial(here.address, "server 0", introduce("client"), 20.0, retry=False)
        serial = connection.socket.getpeercert()["serialNumber"]
        connection.close()
        return serial

    first = certificates.serial("rotated")
    assert shown() == shown() == first
    certificates.issue("rotated", days=-1)
    with pytest.raises(RendezvousError, match="certificate has expired"):
        shown()
    certificates.issue("rotated")
    assert shown() == certificates.serial("rotated") != first


@pytest.mark.parametrize("client_has_it", [True, False])
def test_plain_against_tls_ends_in_words(open_port, say_hello, certificates, client_has_it, caplog):
    plain = Credentials()
    here = open_port(credentials=plain if client_has_it else with_tls(certificates.tls("good")))
    start = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        say_hello(here, with_tls(certificates.tls()) if client_has_it else plain, retry=True)
    expect_prompt(time.monotonic() - start, "to give up")
    assert ("speaks no TLS" if client_has_it else "refused: this process speaks TLS, and yours does not") in str(
        caught.value
    )
    assert "give both tls=, or neither" in caplog.text


def test_tls_that_is_begun_and_not_ended_is_given_up(open_port, certificates, monkeypatch):
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 0.3)
    here = open_port(credentials=with_tls(certificates.tls("good")))
    for said in (b"", b"\x16", b"\x16\x03\x01\x00\x10"):
        with socket.create_connection(here.address, timeout=LONG_S) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR) if not said else None
            try:
                assert stranger.recv(1 << 10) in (b"", b"\x15\x03\x03\x00\x02\x022")
            except ConnectionResetError:
                pass
    assert eventually(lambda: not here._silent)


# -- the port --------------------------------------------------------------------------------------------------------


def test_silent_connections_make_room(open_port, say_hello, monkeypatch):
    """Many connect and say nothing: a client that says something is welcomed nevertheless."""
    monkeypatch.setattr(listener, "_MOST_HANDSHAKES", 4)

    async def welcome(connection, hello):
        connection.send(introduce("client", got=hello["number"]))
        connection.part()

    here = open_port(welcome)
    silent = [socket.create_connection(here.address) for _ in range(20)]
    try:
        for number in range(6):
            assert say_hello(here, number=number)["got"] == number
        silent[0].settimeout(LONG_S)
        assert silent[0].recv(1) == b""  # the oldest lost its place
        assert len(here._silent) <= 4
    finally:
        for each in silent:
            each.close()
    assert eventually(lambda: not here._silent)


def test_who_is_refused_keeps_its_place_until_it_is_gone(open_port, tokens, monkeypatch):
    """So that strangers never have more connections than there are places."""
    monkeypatch.setattr(listener, "_MOST_HANDSHAKES", 3)
    monkeypatch.setattr(deadlines, "GOODBYE_S", LONG_S)
    here = open_port(credentials=tokens["write"])
    strangers = []
    for _ in range(4):
        strangers.append(Wire(here.address))
        strangers[-1].say(GREETING.pack(2, 0, bytes(32)))
        strangers[-1].hear()
        assert b"a token is asked for here" in strangers[-1].hear()
    assert len(here._silent) == 3
    assert strangers[0].socket.recv(1) == b""
    for each in strangers:
        each.socket.close()
    assert eventually(lambda: not here._silent)


def test_a_port_outlives_what_it_cannot_take(open_port, say_hello, caplog):
    """No descriptors for the first connection, nonsense from the second: the next one is welcomed."""
    num_welcomed = 0

    async def welcome(connection, hello):
        nonlocal num_welcomed
        num_welcomed += 1
        if num_welcomed == 1:
            raise OSError(24, "Too many open files")
        if num_welcomed == 2:
            raise KeyError("rank")
        connection.send(introduce("client"))
        connection.part()

    here = open_port(welcome)
    with pytest.raises(PeerLost, match="ended during the handshake"):
        say_hello(here)
    with pytest.raises(RendezvousError, match="this is no handshake: KeyError: 'rank'"):
        say_hello(here)
    say_hello(here)
    assert not here._silent


def test_a_port_out_of_descriptors_waits_for_some(open_port, caplog):
    here = open_port()
    client = Wire(here.address)  # is accepted
    client.say(GREETING.pack(2, 0, bytes(32)))
    client.hear()
    late = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with caplog.at_level(logging.ERROR):
            late.connect(here.address)
            assert eventually(lambda: "cannot accept connections" in caplog.text)
            assert "raise the limit before it starts, with ulimit -n" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
    late.sendall(struct.pack("<4sBB2xIQQ", b"GLT2", 2, 0, 0, 0, 35) + GREETING.pack(2, 0, bytes(32)))
    late.settimeout(LONG_S)
    assert late.recv(4) == b"GLT2"
    late.close()
    client.socket.close()


def test_a_process_that_may_open_no_more_sockets_says_so_at_once():
    """It is not the fault of who is there or is not, or of another program that has the port."""
    port, (soft, hard) = free_port(), resource.getrlimit(resource.RLIMIT_NOFILE)
    with pytest.raises(RendezvousError):
        greet(port, 0.1)  # what opens descriptors of its own has done so
    lowest_free = os.dup(0)
    os.close(lowest_free)
    start = time.monotonic()
    said = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        for act in (
            lambda: greet(port, 100.0),
            lambda: Listener(("127.0.0.1", port), "server 3", ("127.0.0.1", 1), keep_quiet),
            lambda: LocalListener(keep_quiet),
        ):
            with pytest.raises(OSError, match="Too many open files") as caught:
                act()
            said.append(str(caught.value))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all("ulimit -n" in each for each in said), said
    expect_prompt(time.monotonic() - start, "to say so")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_clients_that_come_before_it_is_opened_are_welcomed_then(
    open_port, say_hello, certificates, monkeypatch, is_encrypted
):
    """However long it takes to get ready: a port that does not answer yet is no stranger."""
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 0.2)
    here = open_port(is_open=False, credentials=Credentials(tls=certificates.tls("good") if is_encrypted else None))
    with ThreadPoolExecutor(2) as pool:
        theirs = Credentials(tls=certificates.tls() if is_encrypted else None)
        early = [pool.submit(say_hello, here, theirs) for _ in range(2)]
        assert not wait(early, 1.0).done
        monkeypatch.setattr(deadlines, "HANDSHAKE_S", LONG_S)
        here.open()
        assert all("version" in each.result(20.0) for each in early)


def test_another_may_listen_there_once_it_is_closed(open_port, say_hello):
    here = open_port()
    port = here.address[1]
    for _ in range(20):
        here.close()
        here.close()
        here = Listener(("127.0.0.1", port), "server 0", ("127.0.0.1", 1), here._welcome)
        here.open()
        say_hello(here)
    here.close()


def test_a_port_that_is_taken_is_named(open_port):
    here = open_port()
    with pytest.raises(
        RendezvousError, match=f"server 1 cannot listen at '127.0.0.1', master_port = {here.address[1]}"
    ):
        Listener(here.address, "server 1", ("127.0.0.1", 1), here._welcome, "master_port")


def test_processes_of_this_host_meet_at_a_unix_socket(tokens, monkeypatch):
    heard = []

    async def welcome(connection, hello):
        heard.append(hello["kind"])
        connection.send(introduce("server"))
        connection.part()

    here = LocalListener(welcome)
    here.open()
    connection, answer = dial(here.name, "server 0", introduce("client"), 20.0)
    connection.close()
    assert answer["kind"] == "server" and heard == ["client"]
    monkeypatch.setattr(listener.os, "geteuid", lambda: 2**31)
    with pytest.raises(RendezvousError, match="refused: it belongs to user"):
        dial(here.name, "server 0", introduce("client"), 20.0)
    here.close()


FRAME = struct.Struct("<4sBB2xIQQ")


def hello_of(**said):
    body = json.dumps({**introduce("client"), **said}).encode()
    return FRAME.pack(b"GLT2", 1, 0, len(body), 0, 0) + body


def test_json_is_not_parsed_before_the_proof(open_port, tokens, monkeypatch):
    parsed = []
    monkeypatch.setattr(connection_module.json, "loads", lambda text: parsed.append(text) or {})
    here = open_port(credentials=tokens["write"])
    for first in (b"", GREETING.pack(2, 2, bytes(32))):
        stranger = Wire(here.address)
        if first:
            stranger.say(first)
            stranger.hear()
        stranger.socket.sendall(hello_of())
        assert stranger.socket.recv(1) == b"" and not parsed
        stranger.socket.close()


def test_strangers_write_no_lines_of_their_own_into_the_log(open_port, caplog):
    """What they say of themselves is one line, of a few characters that can be printed."""

    async def welcome(connection, hello):
        raise ValueError(f"{hello['group']}")

    here = open_port(welcome)
    forged = "x\nERROR forged \ud800\x1b[2J" + "y" * 3000
    for said in ({"version": forged}, {"kind": forged}, {"group": forged}, {"host": forged, "group": "g"}):
        stranger = Wire(here.address)
        stranger.say(GREETING.pack(2, 0, bytes(32)))
        stranger.hear()
        stranger.socket.sendall(hello_of(**said))
        assert b"refused" in stranger.hear()
        stranger.socket.close()
    assert len(caplog.messages) == 4
    assert all(message.isprintable() and len(message) < 1500 for message in caplog.messages)


def test_strangers_do_not_fill_the_log(open_port, caplog, monkeypatch):
    monkeypatch.setattr(listener, "_MOST_WARNINGS", 3)
    here = open_port()
    for _ in range(10):
        stranger = Wire(here.address)
        stranger.say(GREETING.pack(77, 0, bytes(32)))
        stranger.hear()
        assert b"protocol 77" in stranger.hear()
        stranger.socket.close()
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 3 and "not written" in warnings[-1]


def test_a_local_connection_that_has_ended_is_no_fault_of_the_port(caplog):
    async def welcome(connection, hello):
        raise AssertionError("it has ended")

    here = LocalListener(welcome)
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "a client")
    on_loop(connection.close)
    with pytest.raises(ConnectionLost):
        wait_for(here._welcome(connection, {}), LONG_S)
    theirs.close()
    here.close()
