"""The section on who may call the services; docs/security.md says what each mode is worth."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tandem.config.section import Section


class SecurityConfig(Section):
    """How processes prove what they are. No secret stands here: files are named, and read where they are needed."""

    mode: Literal["auto", "none", "token", "mtls"] = Field(
        default="auto",
        description="none: anyone may call. token: a shared secret, in the clear. mtls: certificates, encrypted. "
        "auto: by the file or folder named here; else none where all ports are on loopback, and token with a secret "
        "drawn for the run on a Ray cluster that was joined.",
    )
    insecure: bool = Field(
        default=False, description="Let ports of mode none be reached from other machines: whoever does, owns the run."
    )
    secret_file: str = Field(
        default="",
        description="File with the secret of mode token, of 32 characters at least; read by the controller alone.",
    )
    tls_dir: str = Field(
        default="",
        description="Folder of mode mtls on each node: ca.pem, and ROLE.pem and ROLE.key of the roles that run there; "
        "`tandem certs` makes one.",
    )

    adapters_from: tuple[str, ...] = Field(
        default=(),
        description="Folders or URLs of which weights are loaded beside the store and model.adapter; `tandem eval` "
        "adds what it is asked for.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> SecurityConfig:
        if self.secret_file and self.tls_dir:
            raise ValueError("secret_file is for mode token, tls_dir for mtls; set one of them")
        for key, value, mode in (("secret_file", self.secret_file, "token"), ("tls_dir", self.tls_dir, "mtls")):
            if value and self.mode not in ("auto", mode):
                raise ValueError(f"{key} is for mode {mode}, but mode is {self.mode}; set one of them back")
        if self.mode == "mtls" and not self.tls_dir:
            raise ValueError("mode mtls needs tls_dir; `tandem certs DIR` makes one")
        return self

    def chosen(self, *, loopback: bool) -> Literal["none", "token", "mtls"]:
        """The mode where the run's ports are on loopback, or are not."""
        if self.mode != "auto":
            return self.mode
        if self.tls_dir:
            return "mtls"
        return "none" if loopback and not self.secret_file else "token"
