"""python -m tandem_rollout"""

import sys

from tandem.rpc.alone import run_alone
from tandem_rollout.main import start

if __name__ == "__main__":  # vLLM's own process imports the main module again
    sys.exit(run_alone("rollout", start, ended=lambda replica: replica.ended))
