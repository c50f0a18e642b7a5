"""Ray: join or start a cluster, place services, host each in an actor. Alone here in importing ray."""

from tandem.cluster.deploy import Deployment, deployed
from tandem.cluster.registry import find
from tandem.cluster.session import ray_session

__all__ = ["Deployment", "deployed", "find", "ray_session"]
