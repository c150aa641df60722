"""Every target there is. A new codec is one more line here; `make fuzz` and the tests follow from it."""

from fuzz import config, devices, flight, frames, http, names, zeromq
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (zeromq, devices, frames, flight, http, names, config)
    for target in module.TARGETS
}
