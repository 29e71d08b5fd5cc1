"""Hostile connections to a port and a Unix socket of the wire itself, in each way that it may be protected."""

import contextlib
import ssl
import tempfile
from pathlib import Path

from actors import Actors
from attacks import SPOILED_CONTEXTS, Siege, bytes_of
from certificates import NAME, make_authority, make_certificate, tls
from score import Clock, Score
from stranger import Target

from glt.distributed.wire.credentials import Credentials, Token
from glt.distributed.wire.handshake import introduce

HANDSHAKE_S, _TOY_S = 2.0, 0.5
PROTECTIONS = ("nothing", "token", "TLS", "token and mutual TLS")


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    protections = PROTECTIONS[::3] if is_toy else PROTECTIONS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        for number, protection in enumerate(protections):
            share = clock.share(1 / (len(protections) - number))
            with score.trying(f"wire, {protection}: nothing is left"):
                _besiege(score, share, protection, folder, most, _TOY_S if is_toy else HANDSHAKE_S)
            print(f"wire, {protection}: done, {score.num_failed} failed so far", flush=True)


def make_files(folder: Path) -> None:
    """A token; certificates of the job, of another authority, and one that has expired."""
    Token.new().write(folder / "token")
    make_authority(folder)
    make_certificate(folder)
    make_authority(folder, "others")
    make_certificate(folder, "foreign", "others")
    make_certificate(folder, "elsewhere", host="elsewhere.invalid")


def credentials_of(protection: str, folder: Path) -> Credentials:
    token = folder / "token" if "token" in protection else None
    return Credentials(token, tls(folder, mutual="mutual" in protection) if "TLS" in protection else None)


@contextlib.contextmanager
def spoiled_contexts(protection: str, folder: Path):
    """TLS as those speak it who must not be let in."""

    def of_the_past():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context

    def without_certificate():
        return tls(folder, None).context(of_server=False) if "mutual" in protection else None

    def with_a_foreign_certificate():
        if "mutual" not in protection:
            return None
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        own.load_verify_locations(folder / "ca.pem")
        own.load_cert_chain(folder / "foreign.pem", folder / "foreign.key")
        return own

    SPOILED_CONTEXTS[:] = [of_the_past, without_certificate, with_a_foreign_certificate]
    yield
    SPOILED_CONTEXTS.clear()


def _besiege(score: Score, clock: Clock, protection: str, folder: Path, most: int, handshake_s: float) -> None:
    credentials = credentials_of(protection, folder)
    with Actors(2, "stand_in.StandIn", clock.left_s + 300) as actors:
        for actor in range(2):
            actors.ask(actor, "lower", credentials.to_json(), HANDSHAKE_S=handshake_s)
        port, local = actors.ask(0, "listen")
        actors.ask(1, "go", list(port), score.seed)
        actors.expect_progress(1)
        hello = introduce("stand-in", secret="s")
        calls = [(7, n, {"secret": "s", "count": n}, bytes(range(n))) for n in range(1, 6)]
        conversation = ((0, 0, hello, b""), *calls)
        common = {
            "pids": (actors.processes[0].pid,), "handshake_s": handshake_s, "token": credentials.token(),
            "hellos": (hello,), "conversations": (conversation,),
            "recorded": (bytes_of(conversation, 0 if credentials.token_file is None else 2),),
        }  # fmt: skip
        context = credentials.tls and credentials.tls.context(of_server=False)
        targets = [
            Target(f"wire, {protection}, port", tuple(port), tls=context, name_of_host=NAME, **common),
            Target(f"wire, {protection}, Unix socket", local, **common),
        ]
        with spoiled_contexts(protection, folder):
            for number, target in enumerate(targets):
                siege = Siege(target, score, lambda: actors.expect_progress(1), most=most)
                siege.run(clock.share(1 / (len(targets) - number)))
        actors.end()
        for actor in range(2):
            assert "Traceback" not in actors.output(actor), actors.output(actor)[-3000:]
