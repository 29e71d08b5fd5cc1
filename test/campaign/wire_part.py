"""Hostile connections to a port and a Unix socket of the wire itself, in each way that it may be protected."""

import ssl
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from actors import Actors
from attacks import Siege
from certificates import Certificates
from score import Clock, Score, side_by_side
from stranger import Target

from glt.distributed.wire.credentials import Credentials, Token
from glt.distributed.wire.handshake import introduce

HANDSHAKE_S = 1.5
NUM_LANES = 5  # sieges at a time, which wait most of the time
PROTECTIONS = ("nothing", "token", "TLS", "token and mutual TLS")


def run(score: Score, clock: Clock, most: int, is_toy: bool) -> None:
    with Keys() as keys:

        def besiege(protection: str, share: Clock) -> None:
            with score.trying(f"wire, {protection}: nothing is left"):
                _besiege(score, share, protection, keys, most)
            print(f"wire, {protection}: done, {score.num_failed} failed so far", flush=True)

        protections = [each for each in PROTECTIONS[3 if is_toy else 0 :] if score.wants(f"wire, {each}")]
        side_by_side(NUM_LANES, clock, [partial(besiege, each) for each in protections])


class Keys:
    """A token; and certificates of the job, of another authority, for another host, and one that has expired."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self.token_file = folder / "token"
        Token.new().write(self.token_file)
        for name in ("own", "others"):
            (folder / name).mkdir()
        self.own, self.others = Certificates(folder / "own"), Certificates(folder / "others")
        for name in ("server", "client"):
            self.own.issue(name)
        self.own.issue("expired", days=-1)
        self.others.issue("foreign")
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def credentials(self, protection: str, name: str = "server") -> Credentials:
        """Of a process of the job: its token and TLS, as far as these protect it."""
        token = self.token_file if "token" in protection else None
        is_tls = "TLS" in protection
        told = {"mutual": "mutual" in protection, "server_name": "127.0.0.1"}
        return Credentials(token, self.own.tls(name, **told) if is_tls else None)

    def spoiled_contexts(self, protection: str):
        """TLS as those speak it who must not be let in, by what is wrong."""
        if "TLS" not in protection:
            return {}
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        found = {"TLS 1.2": old}
        if "mutual" in protection:
            found["no certificate"] = self._context(None)
            found["an expired certificate"] = self._context((self.own, "expired"))
            found["a certificate of another authority"] = self._context((self.others, "foreign"))
        return found

    def _context(self, shown):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.own.ca)
        if shown is not None:
            certificates, name = shown
            tls = certificates.tls(name)
            context.load_cert_chain(tls.cert, tls.key)
        return context


def _besiege(score: Score, clock: Clock, protection: str, keys: Keys, most: int) -> None:
    credentials = keys.credentials(protection)
    with Actors(2, "stand_in.StandIn", clock.left_s + 300) as actors:
        for actor in range(2):
            actors.ask(actor, "lower", credentials.to_json(), HANDSHAKE_S=HANDSHAKE_S)
        port, local = actors.ask(0, "listen")
        actors.ask(1, "go", list(port), score.seed)
        actors.expect_progress(1)
        hello = introduce("stand-in", secret="s")
        calls = [(7, n, {"secret": "s", "count": n}, bytes(range(n))) for n in range(1, 6)]
        conversation = ((0, 0, hello, b""), *calls)
        target = Target(
            name=f"wire, {protection}, port", address=tuple(port), pids=(actors.processes[0].pid,),
            handshake_s=HANDSHAKE_S, token=credentials.token(),
            tls=credentials.tls and credentials.tls.context(of_server=False),
            spoiled=keys.spoiled_contexts(protection), hellos=(hello,), conversations=(conversation,),
        )  # fmt: skip
        targets = [target, replace(target, name=f"wire, {protection}, Unix socket", address=local, tls=None)]
        for number, each in enumerate(targets):
            siege = Siege(each, score, lambda: actors.expect_progress(1, more=min(20, most)), most=most)
            siege.run(clock.share(1 / (len(targets) - number)))
        actors.end()
        actors.expect_no_traceback()
