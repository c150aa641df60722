"""`python -m stafeta` is `stafeta`."""

import sys

from stafeta.cli.main import main

sys.exit(main())
