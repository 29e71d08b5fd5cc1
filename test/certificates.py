"""Certificates for tests, made as docs/guides/security.md makes them, but valid in the past if that is asked for."""

import shutil
import subprocess

import pytest

from glt.distributed import TlsOptions

NAME = "glt.internal"
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split()


def make_authority(folder, name="ca"):
    """Makes ``ca.pem`` and ``ca.key``."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here")
    _openssl(folder, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "30")


def make_certificate(folder, name="job", authority="ca", host=NAME):
    """Makes ``job.pem`` and ``job.key``, signed by the authority, for a name."""
    signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-days", "7"]
    of = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-addext", "basicConstraints=CA:FALSE"]
    _openssl(folder, *signed, *of, "-keyout", f"{name}.key", "-out", f"{name}.pem")


def tls(folder, name="job", authority="ca", **more):
    """Options with the certificate of that name; None: without one."""
    own = {} if name is None else {"cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}
    return TlsOptions(**own, ca=folder / f"{authority}.pem", **{"server_name": NAME, **more})


def _openssl(folder, *words):
    done = subprocess.run(
        ["openssl", "req", "-x509", *_KEY, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
