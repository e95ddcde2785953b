# SPDX-License-Identifier: Apache-2.0
"""Certificates for the tests of TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(directory: Path) -> Path:
    """A CA with a certificate for 127.0.0.1, and another CA that nobody trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for ca, member in (("ca", "member"), ("foreign-ca", "foreign")):
        openssl(
            *("req", "-x509", *new_key, "-days", "2"),
            *("-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.pem"),
        )
        openssl(
            "req", *new_key, "-subj", "/CN=localhost", "-keyout", f"{member}.key", "-out", f"{member}.csr"
        )
        openssl(
            *("x509", "-req", "-in", f"{member}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", f"{member}.pem"),
        )
    return directory
