"""python -m tandem_checkpoint_manager"""

import sys

from tandem.rpc.alone import run_alone
from tandem_checkpoint_manager.main import start

if __name__ == "__main__":
    sys.exit(run_alone("checkpoint_manager", start))
