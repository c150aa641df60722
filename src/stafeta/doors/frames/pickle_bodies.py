"""Bodies in pickle: a dictionary, of plain data and nothing else."""

import pickle
from typing import Any, ClassVar, Final

from stafeta.doors.frames import unpickling, values
from stafeta.errors import InvalidFrame

PROTOCOL: Final = 4  # what every Python 3 reads


class PickleBodies:
    name: ClassVar[str] = "pickle"
    code: ClassVar[int] = 2

    def check(self, value: object) -> None:
        values.pack(value)

    def dump(self, fields: dict[str, object]) -> bytes:
        return pickle.dumps(fields, PROTOCOL)

    def load(self, body: bytes) -> dict[str, Any]:
        fields = unpickling.loads(body)
        if not isinstance(fields, dict):
            raise InvalidFrame("The body is a pickle, but of no dictionary.")
        return fields

    def read(self, body: bytes) -> dict[str, Any]:
        fields = self.load(body)
        if "message" in fields:
            fields["message"] = values.pack(fields["message"])
        return fields
