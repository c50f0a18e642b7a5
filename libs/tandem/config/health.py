"""The section on the health of nodes, as Kubernetes tells it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
        default="", description="URL of the Kubernetes API; empty: the one of the cluster the controller runs in."
    )
    folder: str = Field(
        default="/var/run/secrets/kubernetes.io/serviceaccount",
        description="Folder of the service account's `token` and `ca.crt`; read again for every connection.",
    )
