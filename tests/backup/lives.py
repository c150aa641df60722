"""A store that lives, and is backed up meanwhile: what each point has to hold, and whether it does."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from stafeta.backup import points, restoring, taking
from stafeta.backup.destination import Destination
from stafeta.store.port import Append, Group, Promotion
from tests.broker.stores import FailingSqlite
from tests.soundness import assert_sound
from tests.store.test_store import batch, payloads, topic

TOPICS = range(1, 4)


class Killed(BaseException):
    """In place of a kill: nothing is done any more."""


class Dying(Destination):
    """A destination at which a backup is killed when it has done so many steps."""

    steps = -1  # that are left; below 0: it is not killed
    dead = False

    def _step(self) -> None:
        if self.dead or self.steps == 0:
            self.dead = True
            raise Killed
        self.steps -= 1

    def write(self, name: str, *rest: Any, **more: Any) -> Any:
        self._step()
        written = super().write(name, *rest, **more)
        self._step()
        return written

    def remove(self, name: str) -> None:
        self._step()
        super().remove(name)


class Interrupting(Destination):
    """Calls something before the first file of messages is written."""

    def __init__(
        self, filesystem: fs.FileSystem, path: Path, interrupt: Callable[[], None] | None = None
    ) -> None:
        super().__init__(filesystem, str(path))
        self._interrupt = interrupt

    def write(self, name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("files/") and self._interrupt is not None:
            self._interrupt()
            self._interrupt = None
        return super().write(name, *rest, **more)


Expected = dict[int, list[int]]  # by topic, the offsets of the messages that it holds


class Life:
    """A store, what has to be in it, and in its backups."""

    def __init__(self, folder: Path, filesystem: fs.FileSystem | None = None, *, large: int = 0) -> None:
        """Messages of so many bytes more lie in segments."""
        self.folder = folder / "data"
        self.destination = Dying(filesystem or fs.LocalFileSystem(), str(folder / "backups"))
        self._restored = folder
        self._large = large
        self.held: Expected = {id_: [] for id_ in TOPICS}
        self.first = dict.fromkeys(TOPICS, 1)
        self.next = dict.fromkeys(TOPICS, 1)
        self.position = 1
        self.runs = 0
        self.expected: dict[str, Expected] = {}

    async def begin(self) -> None:
        await self.open()
        await self.store.commit(Group(topics={id_: topic(id_) for id_ in TOPICS}))

    async def open(self) -> None:
        self.store = FailingSqlite(self.folder, checkpoint_rows=1, segments_from=400)
        await self.store.open()
        self.runs += 1
        self._run: tuple[int, str] | None = (self.position, f"{self.runs:016x}")

    def payload(self, id_: int, offset: int) -> bytes:
        return b"%d %d" % (id_, offset) + b"." * (self._large * (offset % 2))

    async def do(self, step: tuple[object, ...]) -> None:
        match step:
            case "append", list() as ids:
                await self.append(ids)
            case "release", int() as id_, int() as count:
                await self.release(id_, [*self.held[id_], self.next[id_]][: count + 1][-1])
            case ("sweep",):
                await self.store.sweep()
            case ("checkpoint",):
                await self.store.commit(Group(checkpoint=True, position=self.position))
            case ("crash",):
                self.store.crash()
                await self.open()
            case ("backup",):
                self.back_up()
            case "killed", int() as steps:
                self.back_up_killed(steps)
            case "keep", int() as count:
                self.back_up(keep=count)
            case "restore", int() as which:
                await self.restore(sorted(self.expected)[which % len(self.expected)] if self.expected else "")

    async def append(self, ids: list[int]) -> None:
        appends: list[Append | Promotion] = []
        for id_ in ids:
            offset = self.next[id_]
            appends.append(batch(id_, offset, self.payload(id_, offset), position=self.position))
            self.held[id_].append(offset)
            self.next[id_] += 1
            self.position += 1
        await self.commit(Group(appends=appends, position=self.position, run=self._run))
        self._run = None

    async def release(self, id_: int, first: int) -> None:
        self.first[id_] = first
        self.held[id_] = [offset for offset in self.held[id_] if offset >= first]
        await self.commit(Group(topics={id_: topic(id_, first=self.first[id_], next_=self.next[id_])}))

    async def commit(self, group: Group) -> None:
        group.checkpoint = self.store.checkpoint_due
        await self.store.commit(group)

    # --- backups

    def back_up(self, keep: int | None = None) -> None:
        made = taking.take(self.folder, self.destination, keep=keep)
        self.expected[made.point.name] = {id_: list(held) for id_, held in self.held.items()}
        self._forget_removed()

    def back_up_killed(self, steps: int) -> None:
        """One that is killed while it works; it may have come to its end before."""
        self.destination.steps = steps
        with suppress(Killed):
            taking.take(self.folder, self.destination, keep=2)
        self.destination.steps, self.destination.dead = -1, False
        for name in points.names(self.destination, points.NOTES):
            note = points.read(self.destination, points.Note, points.NOTES, name)
            note.beat = 0  # this process lives
            points.save(self.destination, points.NOTES, note)
        self.look_for_points()

    def look_for_points(self) -> None:
        """What somebody else has made of what is held now, and removed."""
        for name in set(points.names(self.destination)) - set(self.expected):
            self.expected[name] = {id_: list(held) for id_, held in self.held.items()}
        self._forget_removed()

    def _forget_removed(self) -> None:
        left = points.names(self.destination)
        assert set(left) <= set(self.expected)
        self.expected = {name: self.expected[name] for name in left}

    async def check_points(self) -> None:
        """Every point that is there can be restored, and has what was there when it was made. Each is restored once."""
        for name, expected in self.expected.items():
            point = points.find(self.destination, name)
            assert restoring.verify(self.destination, point) == []
            folder = self._restored / f"restored-{name}"
            if folder.exists():
                continue
            resumed = restoring.restore(self.destination, point, folder)
            assert_sound(folder)
            await self._check(folder, expected, resumed.offset)

    async def _check(self, folder: Path, expected: Expected, offset: int) -> None:
        store = FailingSqlite(folder)
        snapshot = await store.open()
        known = {one.id: one for one in snapshot.topics}
        position = snapshot.position
        for id_, held in expected.items():
            assert known[id_].next == offset
            assert known[id_].first == (held[0] if held else offset)
            appends: list[Append | Promotion] = [batch(id_, offset, b"new", position=position)]
            position += 1
            await store.commit(Group(appends=appends, position=position))
            found = payloads(await store.read(id_, known[id_].first, offset + 1, 1 << 20))
            assert found == [*(self.payload(id_, at) for at in held), b"new"]
        while await store.sweep():
            pass
        await store.close()
        assert_sound(folder)

    async def restore(self, name: str) -> None:
        """The broker's folder is lost, and goes on with a restored one."""
        if not name:
            return
        self.store.crash()
        self.folder = self._restored / f"data-{name}-{self.runs}"
        resumed = restoring.restore(self.destination, points.find(self.destination, name), self.folder)
        self.held = {id_: list(held) for id_, held in self.expected[name].items()}
        self.first = {id_: held[0] if held else resumed.offset for id_, held in self.held.items()}
        self.next = dict.fromkeys(TOPICS, resumed.offset)
        self.position = resumed.position
        await self.open()
