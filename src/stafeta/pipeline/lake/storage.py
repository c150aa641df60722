"""How pyiceberg reads and writes files of folders of this machine: URLs are taken as they are, and what is written is
on the disk when it is closed."""

from typing import Any, Final

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from stafeta.pipeline.lake.syncing import SyncedFile

_LOCAL: Final = "file://"


class LocalFileIO(PyArrowFileIO):
    """Named in the settings of the catalog, not in the tables: others read those as they like."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """A folder may have `#` or `?` in its name, which would end a URL's path."""
        if location.startswith(_LOCAL):
            return "file", "", location.removeprefix(_LOCAL)
        return PyArrowFileIO.parse_location(location, properties)

    def new_output(self, location: str) -> PyArrowFile:
        if not location.startswith(_LOCAL):
            return super().new_output(location)
        made: Any = super().new_output(location)
        return _LocalFile(made.location, made._path, made._filesystem)


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return SyncedFile(self._path, overwrite=overwrite)
