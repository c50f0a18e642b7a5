"""python -m tandem_checkpoint_manager"""

import sys

from tandem_checkpoint_manager.main import main

sys.exit(main())
