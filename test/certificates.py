"""Certificates for tests of TLS."""

import os
import shutil
import subprocess

import pytest

from glt.distributed import TlsOptions


class Certificates:
    """An authority and what it has signed, in a folder."""

    def __init__(self, folder):
        if shutil.which("openssl") is None:
            pytest.skip("the command openssl is not installed: no certificates can be made")
        self.folder = folder
        self.ca = self._path("ca.pem")
        self._openssl("req", "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem", *_KEY)

    def _path(self, name):
        return os.fspath(self.folder / name)

    def _openssl(self, *words):
        run = subprocess.run(
            ["openssl", *words], cwd=self.folder, check=True, capture_output=True, timeout=60, text=True
        )
        return run.stdout

    def issue(self, name, days=2, host="IP:127.0.0.1"):
        """Signs a certificate and puts it, with its key, in place of what has this name."""
        new = f"{name}-{os.urandom(4).hex()}"
        self._openssl("req", "-subj", f"/CN={name}", "-keyout", f"{new}.key", "-out", f"{new}.csr", *_KEY)
        (self.folder / f"{new}.ext").write_text(f"subjectAltName={host}\n")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{new}.ext")
        self._openssl("x509", "-req", "-in", f"{new}.csr", "-days", str(days), "-out", f"{new}.pem", *signed)
        for end in ("key", "pem"):
            os.replace(self._path(f"{new}.{end}"), self._path(f"{name}.{end}"))

    def tls(self, name=None, **more):
        """Options that show the certificate of that name, or none, and trust this authority."""
        mine = {} if name is None else {"cert": self._path(f"{name}.pem"), "key": self._path(f"{name}.key")}
        return TlsOptions(**{**mine, "ca": self.ca, **more})

    def serial(self, name):
        return self._openssl("x509", "-in", f"{name}.pem", "-noout", "-serial").strip().partition("=")[2]


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
