"""The certificate of the pages."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from scaler_ui.web.certificates import check_tls
from support.certificates import write_certificate


def test_a_certificate_and_its_key_belong_together(tmp_path: Path) -> None:
    assert not check_tls(None, None)
    file = tmp_path / "file.pem"
    with pytest.raises(ValueError, match="belong together: give both"):
        check_tls(file, None)
    with pytest.raises(ValueError, match=f"--tls-cert {file} and --tls-key {file} cannot be used: .*No such file"):
        check_tls(file, file)
    file.write_text("no certificate")
    with pytest.raises(ValueError, match="one of them is no PEM file, or not whole"):
        check_tls(file, file)
    certificate, key = write_certificate(tmp_path)
    assert not check_tls(certificate, key)
    other = key.rename(tmp_path / "other.pem")
    certificate, key = write_certificate(tmp_path)
    with pytest.raises(ValueError, match="the key is not that of the certificate"):
        check_tls(certificate, other)
    with pytest.raises(ValueError, match=f"cannot be used: {tmp_path} is no plain file"):
        check_tls(certificate, tmp_path)
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(ValueError, match=f"cannot be used: {pipe} is no plain file"):
        check_tls(certificate, pipe)
    with pytest.raises(ValueError, match="the key is encrypted; write it without"):  # and nobody is asked for it
        check_tls(*write_certificate(tmp_path, b"secret"))


@pytest.mark.parametrize(("days", "why"), [(-1, "certificate has expired"), (1, "certificate is not yet valid")])
def test_a_certificate_that_browsers_refuse_is_told_of(days: int, why: str, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, begins=datetime.timedelta(days=days - 0.5))
    assert check_tls(certificate, key).startswith(f"browsers will refuse --tls-cert {certificate}: {why}")
