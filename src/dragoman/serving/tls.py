"""Encryption: the certificate of the service and its private key."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import UserError


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM format: the certificate with those of its issuers, and its private key without a password."""

    certificate: Path
    key: Path

    @classmethod
    def from_options(cls, certificate: Path | None, key: Path | None) -> TlsFiles | None:
        """Return the files of --tls-cert and --tls-key after checking that they can be used; None without both.

        One option without the other, or files that cannot be used, are a UserError.
        """
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            present, missing = ("--tls-key", "--tls-cert") if certificate is None else ("--tls-cert", "--tls-key")
            raise UserError(
                f"{present} is given without {missing}: give both options for https, or leave out both for http"
            )
        files = cls(certificate, key)
        files.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # raises an error if they are not valid
        return files

    def load_into(self, context: ssl.SSLContext) -> None:
        """Use certificate and key for connections that begin from now on with `context`; a UserError if not valid."""
        for option, path in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            try:
                text = path.read_text(encoding="ascii", errors="replace")
            except OSError as error:
                raise UserError(
                    f"the file {path} of {option} cannot be read: {error.strerror}; check its path and permissions"
                ) from None
            content = "CERTIFICATE" if path is self.certificate else "PRIVATE KEY"
            if f"{content}-----" not in text:
                raise UserError(
                    f"the file {path} of {option} has no {content.lower()} in PEM format (-----BEGIN …): name another "
                    "file"
                )
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._reject_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            problem = "the key does not belong to the certificate" if "MISMATCH" in reason else reason
            raise UserError(
                f"{self.certificate} (--tls-cert) and {self.key} (--tls-key) cannot be used for https: {problem}; "
                "give a certificate and its own key"
            ) from None

    def _reject_password(self) -> str:
        """Raise a UserError: nobody could type the password of a key when the service is restarted."""
        raise UserError(
            f"the private key {self.key} has a password, which the service cannot ask for: remove it with 'openssl "
            f"pkey -in {self.key} -out FILE'"
        )
