"""Ray: join or start a cluster, place services, host each in an actor. Alone here in importing ray."""

from tandem.cluster.deploy import Deployment, Members, deployed
from tandem.cluster.registry import find
from tandem.cluster.session import ray_session

__all__ = ["Deployment", "Members", "deployed", "find", "ray_session"]
