"""Who may speak: the token of a job, TLS, and which of both this process uses.

A token is 32 random bytes. The write token makes everything possible; the read token, which is derived from it and from
which it cannot be found, all that changes nothing. A process that has the write token knows both; so a server needs no
more than that one file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import secrets
import ssl
import stat
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from glt._checks import check_flag, check_text
from glt._tracebacks import short_traceback

logger = logging.getLogger(__name__)

_PREFIX = {True: "glt-write-", False: "glt-read-"}
_KEY_BYTES = 32
_MOST_TOKEN_BYTES = 1024


@dataclass(frozen=True)
class Token:
    """A token, ``key``: the write token (``may_write``) or the read token of a job."""

    key: bytes
    may_write: bool

    @classmethod
    def new(cls) -> Token:
        """A write token, of random bytes."""
        return cls(secrets.token_bytes(_KEY_BYTES), True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Token:
        """The token in a file. Raises ValueError, which names the file, if there is none."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a fifo would be waited for
            try:
                if not stat.S_ISREG(mode := os.fstat(fd).st_mode):
                    raise ValueError(f"token_file = {str(path)!r} is no regular file")
                text = os.read(fd, _MOST_TOKEN_BYTES).decode("ascii", "replace").strip()
            finally:
                os.close(fd)
        except OSError as error:
            raise ValueError(f"token_file = {str(path)!r} cannot be read: {error.strerror}") from error
        for may_write, prefix in _PREFIX.items():
            if text.startswith(prefix):
                try:
                    key = base64.urlsafe_b64decode(text[len(prefix) :] + "=")
                except (binascii.Error, ValueError):
                    continue
                if len(key) == _KEY_BYTES:
                    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
                        logger.warning("token_file = %r can be read or written by others: chmod 600 it", str(path))
                    return cls(key, may_write)
        raise ValueError(f"token_file = {str(path)!r} holds no token: expected a file that `glt token` wrote")

    def write(self, path: str | os.PathLike[str]) -> None:
        """Makes a file of it, which its owner alone can read. Raises FileExistsError if there is one."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(str(self) + "\n")

    def __str__(self) -> str:
        return _PREFIX[self.may_write] + base64.urlsafe_b64encode(self.key).decode().rstrip("=")

    def __repr__(self) -> str:  # never the key
        return f"Token(may_write={self.may_write})"

    def for_reading(self) -> Token:
        """The read token that belongs to it."""
        return Token(hmac.digest(self.key, b"glt read token", hashlib.sha256), False) if self.may_write else self

    def prove(self, who: bytes, said: bytes) -> bytes:
        """Shows that ``who`` has the token, in a handshake in which both have ``said`` this, random numbers of both
        among it: 32 bytes."""
        return hmac.digest(self.key, b"glt " + who + b"\0" + said, hashlib.sha256)


class LentToken:
    """A new token that other processes of this user on this host may read at ``path``, for as long as this process
    lives and has not closed it: it is in memory, so that nothing is left behind however this process ends."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("glt-token")
        os.fchmod(self._fd, 0o600)
        os.write(self._fd, f"{Token.new()}\n".encode())
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lent_token_file(path: str) -> str:
    """The path of a :class:`LentToken`, as another process has told it; ValueError if it is something else, or belongs
    to another user."""
    try:
        owner = os.stat(path).st_uid if re.fullmatch("/proc/[0-9]+/fd/[0-9]+", path) else None
    except OSError as error:
        raise ValueError(f"the token that rank 0 has made, {path!r}, cannot be read: {error.strerror}") from error
    if owner != os.geteuid():
        raise ValueError(f"the token that rank 0 has made, {path!r}, does not belong to this user")
    return path


@short_traceback
@dataclass(frozen=True)
class TlsOptions:
    """TLS 1.3 between processes, by Python's ``ssl``. Files are PEM, and read again when they change: certificates are
    replaced without a restart.

    Args:
        cert, key: Certificate chain of this process and its private key, without a passphrase. Servers and trainers
            need both; clients where ``mutual`` is asked of them.
        ca: Certificates that others' must be signed by. Default: those that the system trusts.
        mutual: Whether those who connect to this process must show a certificate too, one that ``ca`` has signed.
        server_name: The name that others' certificates must be for. Default: the address that is connected to, which
            glt finds by itself in many cases; so give it where certificates name hosts.

    Raises:
        TypeError, ValueError: If an argument is no path, flag or name.

    Example:
        >>> glt.distributed.TlsOptions(cert="job.pem", key="job.key", ca="ca.pem", server_name="glt.internal").mutual
        False
    """

    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    mutual: bool = False
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("cert", "key", "ca"):
            object.__setattr__(self, name, _absolute(name, getattr(self, name)))
        check_text("server_name", self.server_name)
        check_flag("mutual", self.mutual)
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "cert"
            raise ValueError(f"{missing} = None: expected both a certificate and its key, or neither")

    def context(self, of_server: bool) -> ssl.SSLContext:
        """For connections that this process takes or makes. Raises ValueError, which names the file, if one is missing
        or no certificate."""
        if of_server and self.cert is None:
            raise ValueError("cert = None: a process that listens needs a certificate and its key (tls-cert, tls-key)")
        if of_server and self.mutual and self.ca is None:  # anybody gets a certificate of a public authority
            raise ValueError("ca = None: mutual needs the authority whose certificates are taken (tls-ca)")
        with _lock:
            state = tuple(_stamp(getattr(self, name)) for name in ("cert", "key", "ca"))
            found = _contexts.get((self, of_server))
            if found is None or found[0] != state:
                try:
                    made = self._make(of_server)
                except ValueError as error:
                    if found is None:
                        raise
                    made = found[1]  # of a certificate and its key, one was replaced and the other not yet, perhaps
                    logger.warning("the certificates that were read before stay in use: %s", error)
                found = _contexts[self, of_server] = state, made
            return found[1]

    def _make(self, of_server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if of_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if of_server:
            context.num_tickets = 0  # with a ticket, one whose certificate has expired could come back for hours
        name = "cert"
        for each in ("cert", "key", "ca"):
            if (path := getattr(self, each)) is not None and os.path.exists(path) and not os.path.isfile(path):
                raise ValueError(f"{each} = {path!r} is no regular file: expected one in PEM")
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, _no_passphrase)
            name = "ca"
            if not of_server or self.mutual:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self.ca) if self.ca else context.load_default_certs(
                    ssl.Purpose.CLIENT_AUTH if of_server else ssl.Purpose.SERVER_AUTH
                )
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"{name} = {getattr(self, name)!r} cannot be used: {error}; expected files in PEM"
            ) from error
        return context


_lock = threading.Lock()
_contexts: dict[tuple[TlsOptions, bool], tuple[Any, ssl.SSLContext]] = {}


def _no_passphrase() -> str:
    raise OSError("the key has a passphrase; glt asks for none")


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    """What changes when the file does; None without one."""
    try:
        found = None if path is None else os.stat(path)
    except OSError:
        found = None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)


def _absolute(name: str, path: Any) -> str | None:
    """The path as of now: processes that are told it may run in another directory, and this one may change its own."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    check_text(name, path)
    if path == "":  # of a shell's variable that is not set, as a rule
        raise ValueError(f"{name} = '': expected the path of a file")
    return None if path is None else os.path.abspath(path)


@dataclass(frozen=True)
class Credentials:
    """What this process shows to others and asks of them: a token, TLS, both or nothing. ``require_auth``: it listens
    beyond its host with a token only."""

    token_file: str | None = None
    tls: TlsOptions | None = None
    require_auth: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_file", _absolute("token_file", self.token_file))
        if self.tls is not None and not isinstance(self.tls, TlsOptions):
            raise TypeError(f"tls has type {type(self.tls).__name__}: expected a glt.distributed.TlsOptions")
        check_flag("require_auth", self.require_auth)

    def token(self) -> Token | None:
        """The token, read anew: it may have been replaced."""
        return None if self.token_file is None else Token.read(self.token_file)

    @property
    def is_empty(self) -> bool:
        return self.token_file is None and self.tls is None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "tls": None if self.tls is None else asdict(self.tls)}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Credentials:
        return cls(told["token_file"], TlsOptions(**told["tls"]) if told["tls"] else None, told["require_auth"])

    @classmethod
    def of_environment(cls) -> Credentials:
        """From ``GLT_TOKEN_FILE``, ``GLT_TLS_CERT``, ``GLT_TLS_KEY``, ``GLT_TLS_CA``, ``GLT_TLS_MUTUAL``,
        ``GLT_TLS_SERVER_NAME`` and ``GLT_REQUIRE_AUTH``."""
        found: dict[str, Any] = {}
        for field in fields(TlsOptions):
            if text := os.environ.get(f"GLT_TLS_{field.name.upper()}"):
                found[field.name] = _flag(text) if field.name == "mutual" else text
        require = _flag(os.environ.get("GLT_REQUIRE_AUTH", ""))
        tls = TlsOptions(**found) if any(found.values()) else None
        return cls(os.environ.get("GLT_TOKEN_FILE") or None, tls, require)


def _flag(text: str) -> bool:
    return text.lower() not in ("", "0", "false", "no")


_current: Credentials | None = None


def check_credentials(token_file: Any, tls: Any, require_auth: bool | None) -> None:
    """Raises TypeError or ValueError unless these are a path, TLS options and a flag, or None; reads no file."""
    Credentials(token_file, tls, False if require_auth is None else require_auth)


def use_credentials(
    token_file: Any = None, tls: Any = None, require_auth: bool | None = None, *, listens: bool = False
) -> Credentials | None:
    """Sets what this process shows and asks from now on. Arguments that are None leave what was set, or what the
    environment says. Returns what was set before, for :func:`set_credentials` when it is over.

    Args:
        listens: Whether this process takes connections, for which TLS needs a certificate.

    Raises:
        TypeError, ValueError: If an argument is of another type, or a file is missing or holds no token or certificate.
        RuntimeError: If this process uses others already: it has one set of them.
    """
    global _current
    before, now = _current, current_credentials()
    found = Credentials(
        now.token_file if token_file is None else token_file,
        now.tls if tls is None else tls,
        now.require_auth if require_auth is None else require_auth,
    )
    if before is not None and found != before:
        differing = [field.name for field in fields(found) if getattr(found, field.name) != getattr(before, field.name)]
        shown = ", ".join(
            f"{name} = {getattr(found, name)!r}, and it was {getattr(before, name)!r}" for name in differing
        )
        raise RuntimeError(f"a process has one token and one set of TLS options: {shown}; give the same everywhere")
    found.token()
    if found.tls is not None:
        found.tls.context(of_server=False)
        if listens:
            found.tls.context(of_server=True)
    if found != now:
        _current = found
    return before


def set_credentials(credentials: Credentials | None) -> None:
    """As another process of the job has told this one, or as it was before :func:`use_credentials`."""
    global _current
    _current = credentials


def current_credentials() -> Credentials:
    """What :func:`use_credentials` set, or what the environment says."""
    return Credentials.of_environment() if _current is None else _current
