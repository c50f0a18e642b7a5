"""The section on the health of nodes, as Kubernetes tells it."""

from __future__ import annotations

import ipaddress
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from tandem.config.section import Section


class HealthConfig(Section):
    """A node whose label leaves `Schedulable` is drained before it is replaced."""

    watch: Literal["auto", "off"] = Field(
        default="auto", description="auto: watch the labels of nodes where the controller runs in a Kubernetes cluster."
    )
    label: str = Field(
        default="sagemaker.amazonaws.com/node-health-status",
        min_length=1,
        description="The nodes' label; HyperPod's. A node without it is taken for healthy.",
    )
    api_url: str = Field(
        default="",
        description="URL of the Kubernetes API; empty: the one of the cluster the controller runs in. It gets the "
        "service account's token: https, or http on loopback (kubectl proxy).",
    )
    folder: str = Field(
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        description="Folder of the service account's `token` and `ca.crt`; read again for every connection.",
    )

    @model_validator(mode="after")
    def _no_token_in_the_clear(self) -> Self:
        url = urlsplit(self.api_url)
        if self.api_url and url.scheme != "https" and not (url.scheme == "http" and _loopback(url.hostname or "")):
            raise ValueError(f"api_url {self.api_url}: https, or http on loopback; it gets the service account's token")
        return self


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
