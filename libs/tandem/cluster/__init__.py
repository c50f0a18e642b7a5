"""Ray: joining or starting a cluster, placing services, hosting each in an actor. The only module here that imports ray."""

from tandem.cluster.deploy import Deployment, deployed
from tandem.cluster.registry import find
from tandem.cluster.session import ray_session

__all__ = ["Deployment", "deployed", "find", "ray_session"]
