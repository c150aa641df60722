"""A pipeline of which something is seen within seconds: it waits little, and its windows are short."""

import json
from pathlib import Path
from typing import Final

_RULES: Final = Path(__file__).with_name("alerts.toml")
_CONFIG: Final = """\
[lake]
warehouse = {lake}

[pipeline]
grace = "10s"

[archive]
every = "2s"

[rollup]
sizes = ["5s"]
delay = "2s"

[alerts]
rules = {rules}
"""


def quick_pipeline(lake: Path) -> str:
    """The text of its configuration."""
    return _CONFIG.format(lake=json.dumps(str(lake)), rules=json.dumps(str(_RULES)))
