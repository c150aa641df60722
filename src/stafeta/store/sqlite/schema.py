"""The database's schema, its versions, and every statement that is run against it.

Each row but those of blocks ends with a checksum of its table's name and its values, `sum`, which the function `seal`
makes (seals.py). Blocks have theirs in their headers (blocks.py).
"""
# ruff: noqa: S608 - all that is put into statements is named here

APPLICATION_ID = 0x53544146  # "STAF"
PREFIXES = ("flight/", "counter/")  # that names of producers have since version 4

# The columns that a row's checksum covers. Of a staged batch the body has a checksum of its own, which is one of them.
SEALED = {
    "meta": ("key", "value"),
    "topic": ("id", "name", "first", "next", "present", "keeps_last"),
    "kept": ("topic", "age", "size", "messages"),
    "subscription": ("id", "client", "filter", "start", "durable"),
    "cursor": ("subscription", "topic", "floor"),
    "acked": ("subscription", "topic", "start", "stop"),
    "skipped": ("topic", "start", "stop"),
    "forgotten": ("start", "stop"),
    "producer": ("topic", "producer", "state"),
    "staged": (
        "id", "producer", "counter", "part", "topic", "count", "size", "time", "constants", "segment", "checksum"
    ),
    "done": ("producer", "counter"),
    "begun": ("producer", "attempt"),
    "committed": ("producer", "counter", "label", "expires"),
    "run": ("start", "id"),
    "page": ("topic", "base", "end", "last_block", "runs"),
}  # fmt: skip


def _sealed(table: str) -> str:
    """Gives the rows that a table has their checksums."""
    return f"UPDATE {table} SET sum = seal('{table}', {', '.join(SEALED[table])});"


def _put(table: str, changed: str = "", insert: str = "INSERT") -> str:
    """Inserts a row with its checksum; where its key is there, what may have changed is set."""
    numbers = ", ".join(f"?{n}" for n in range(1, len(SEALED[table]) + 1))
    insert = f"{insert} INTO {table} VALUES ({numbers}, seal('{table}', {numbers}))"
    sets = ", ".join(f"{column} = excluded.{column}" for column in (*changed.split(), "sum"))
    return f"{insert} ON CONFLICT DO UPDATE SET {sets}" if changed else insert


# One script a version. A database of version n is brought forward by the scripts after its n-th, in one transaction.
MIGRATIONS = [
    """
    -- Single values: the last client id given out, the next position, the last checkpointed block, the last block that
    -- collection has looked at.
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

    -- The log, in the order in which it was committed. Only ever appended to, or deleted from.
    CREATE TABLE block (id INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL);

    -- Which rows of which blocks hold which messages of a topic, up to 16 runs a page, for the blocks up to the
    -- checkpoint. Of later blocks the headers say so; they are read again at start-up.
    CREATE TABLE page (
        topic INTEGER NOT NULL, base INTEGER NOT NULL, end INTEGER NOT NULL, last_block INTEGER NOT NULL,
        runs BLOB NOT NULL, PRIMARY KEY (topic, base)
    ) WITHOUT ROWID;

    -- How many of a block's runs are in the index; the block goes with the last.
    CREATE TABLE share (block INTEGER PRIMARY KEY, runs INTEGER NOT NULL);

    -- Topics, those that were removed included: their offsets are never used again.
    CREATE TABLE topic (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, first INTEGER NOT NULL, next INTEGER NOT NULL,
        present INTEGER NOT NULL, keeps_last INTEGER NOT NULL
    );

    CREATE TABLE subscription (id INTEGER PRIMARY KEY, client TEXT NOT NULL, filter TEXT NOT NULL, start INTEGER);
    CREATE TABLE cursor (
        subscription INTEGER NOT NULL, topic INTEGER NOT NULL, floor INTEGER NOT NULL, above TEXT NOT NULL,
        PRIMARY KEY (subscription, topic)
    ) WITHOUT ROWID;

    -- What is remembered of a producer's counters on a topic, as of the checkpoint.
    CREATE TABLE producer (
        topic INTEGER NOT NULL, producer TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (topic, producer)
    ) WITHOUT ROWID;

    -- Batches of transactions that are not committed, and the last transaction committed by each producer.
    CREATE TABLE staged (
        id INTEGER PRIMARY KEY, producer TEXT NOT NULL, counter INTEGER NOT NULL, part TEXT NOT NULL,
        topic TEXT NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL, time INTEGER NOT NULL,
        constants BLOB NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL
    );
    CREATE TABLE done (producer TEXT PRIMARY KEY, counter INTEGER NOT NULL) WITHOUT ROWID;
    """,
    """
    -- Subscriptions that are remembered but hold nothing have no cursors here.
    ALTER TABLE subscription ADD COLUMN durable INTEGER NOT NULL DEFAULT 1;
    """,
    """
    -- Large bodies are in files of their own: `segment` is the file, and the body says where in it they lie.
    -- From this version on a block's header may also say of a column that it counts up.
    ALTER TABLE block ADD COLUMN segment INTEGER;
    ALTER TABLE staged ADD COLUMN segment INTEGER;
    CREATE INDEX block_segment ON block (segment) WHERE segment IS NOT NULL;
    """,
    """
    -- Whether a block may go is decided by its own header. From this version on a header ends with its checksum.
    DROP TABLE share;

    -- Ranges above a cursor's floor that are done: a row each, so that a change costs what it changes.
    CREATE TABLE acked (
        subscription INTEGER NOT NULL, topic INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
        PRIMARY KEY (subscription, topic, start)
    ) WITHOUT ROWID;
    INSERT INTO acked SELECT subscription, topic, json_extract(value, '$[0]'), json_extract(value, '$[1]')
        FROM cursor, json_each(cursor.above);
    ALTER TABLE cursor DROP COLUMN above;

    -- Names of producers are a door's own, and counters are not sequences: whose a name was before, nobody knows.
    INSERT OR IGNORE INTO producer SELECT topic, 'flight/' || producer, state FROM producer
        UNION ALL SELECT topic, 'counter/' || producer, state FROM producer;
    UPDATE staged SET producer = 'flight/' || producer;
    CREATE TABLE renamed AS SELECT 'flight/' || producer, counter FROM done;
    DELETE FROM done;
    INSERT INTO done SELECT * FROM renamed;
    DROP TABLE renamed;

    -- Offsets whose messages are damaged, and that readers pass over since they were told to.
    CREATE TABLE skipped (
        topic INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, PRIMARY KEY (topic, start)
    ) WITHOUT ROWID;

    -- Numbers of removed topics that are not remembered any more, in ranges.
    CREATE TABLE forgotten (start INTEGER PRIMARY KEY, stop INTEGER NOT NULL) WITHOUT ROWID;

    -- That names are unique the broker sees to: an index of them would be one more thing that can be damaged.
    ALTER TABLE topic RENAME TO topic_before;
    CREATE TABLE topic (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, first INTEGER NOT NULL, next INTEGER NOT NULL,
        present INTEGER NOT NULL, keeps_last INTEGER NOT NULL
    );
    INSERT INTO topic SELECT * FROM topic_before;
    DROP TABLE topic_before;
    """
    + "".join(
        f"ALTER TABLE {table} ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;\n{_sealed(table)}\n"
        for table in SEALED
        if table not in ("begun", "committed", "run", "kept")
    ),
    """
    -- The last attempt of each producer at a transaction: who has an earlier one has no more say.
    CREATE TABLE begun (
        producer TEXT PRIMARY KEY, attempt INTEGER NOT NULL, sum INTEGER NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    -- The runs of brokers that have written the log: the position at which each began, and its id.
    CREATE TABLE run (start INTEGER PRIMARY KEY, id TEXT NOT NULL, sum INTEGER NOT NULL);
    """,
    """
    -- What committers wrote on their last transactions, and when a producer that will not come again is forgotten.
    CREATE TABLE committed (
        producer TEXT NOT NULL, counter INTEGER NOT NULL, label TEXT NOT NULL, expires INTEGER NOT NULL,
        sum INTEGER NOT NULL, PRIMARY KEY (producer, counter)
    ) WITHOUT ROWID;
    -- From this version on a filter has no cursor on a topic to which nothing came since it subscribed. One that begins
    -- with the earliest has a start below 0 until it has a cursor on each topic that held something.
    """,
    """
    -- From this version on a staged batch may be of several topics, whose names and numbers of rows are its topic.
    """,
    """
    -- How long topics keep messages that have a retention of their own.
    CREATE TABLE kept (topic INTEGER PRIMARY KEY, age INTEGER, size INTEGER, messages INTEGER, sum INTEGER NOT NULL);
    """,
]

# --- at start-up

ROWS = {table: f"SELECT {', '.join(columns)}, sum FROM {table}" for table, columns in SEALED.items()}
PUT = {table: _put(table, insert="INSERT OR IGNORE") for table in SEALED}  # the first of several stays
LAST_PAGES = """
    SELECT page.topic, page.base, page.end, page.last_block, page.runs, page.sum FROM topic
    JOIN page ON page.topic = topic.id AND page.base = (SELECT max(base) FROM page WHERE topic = topic.id)
"""
# The topics that the index has, each found by one look at it.
INDEXED_TOPICS = """
    WITH RECURSIVE indexed (topic) AS (
        SELECT min(topic) FROM page
        UNION ALL SELECT (SELECT min(page.topic) FROM page WHERE page.topic > indexed.topic) FROM indexed
            WHERE indexed.topic IS NOT NULL
    ) SELECT topic FROM indexed WHERE topic IS NOT NULL
"""
# Of what is damaged, too; where that is no number any more, it does not count.
LAST_TOPIC = """
    SELECT max(id) FROM (
        SELECT id FROM topic UNION ALL SELECT max(topic) FROM page
        UNION ALL SELECT topic FROM cursor UNION ALL SELECT topic FROM producer UNION ALL SELECT topic FROM skipped
    ) WHERE typeof(id) = 'integer'
"""
LAST_SUBSCRIPTION = """
    SELECT max(id) FROM (SELECT id FROM subscription UNION ALL SELECT subscription FROM cursor)
    WHERE typeof(id) = 'integer'
"""
LAST_STAGED = "SELECT coalesce(max(id), 0) FROM staged"
# Whatever damage makes of a value, it is of the type that it should be.
_HEADER = "coalesce(CAST(header AS BLOB), x'')"
_BODY = "coalesce(CAST(body AS BLOB), x'')"
_SEGMENT = "CAST(segment AS INTEGER)"
_BLOCK = f"{_HEADER}, {_BODY}, coalesce(CAST(checksum AS INTEGER), 0), {_SEGMENT}"
HEADERS_AFTER = f"SELECT id, {_HEADER} FROM block WHERE id > ? ORDER BY id"
BLOCKS_AFTER = f"SELECT id, {_BLOCK} FROM block WHERE id > ? ORDER BY id"
LAST_BLOCK = "SELECT coalesce(max(id), 0) FROM block"

# --- one commit

SET_META = _put("meta", "value")
ADD_BLOCK = "INSERT INTO block (id, header, segment, body, checksum) VALUES (?, ?, ?, ?, ?)"
SET_TOPIC = _put("topic", "first next present keeps_last")
SET_KEPT = _put("kept", "age size messages")
DROP_KEPT = "DELETE FROM kept WHERE topic = ?"
SET_SUBSCRIPTION = _put("subscription", "start durable")
DROP_SUBSCRIPTION = "DELETE FROM subscription WHERE id = ?"
DROP_CURSORS_OF = "DELETE FROM cursor WHERE subscription = ?"
DROP_ACKED_OF = "DELETE FROM acked WHERE subscription = ?"
SET_CURSOR = _put("cursor", "floor")
DROP_ACKED = "DELETE FROM acked WHERE subscription = ? AND topic = ?"
DROP_ACKED_AT = "DELETE FROM acked WHERE subscription = ? AND topic = ? AND start = ?"
SET_ACKED = _put("acked", "stop")
SET_SKIPPED = _put("skipped", "stop")
SET_FORGOTTEN = _put("forgotten", "stop")
DROP_FORGOTTEN = "DELETE FROM forgotten WHERE start = ?"
DROP_TOPIC = "DELETE FROM topic WHERE id = ?"
DROP_PRODUCERS_OF = "DELETE FROM producer WHERE topic = ?"
DROP_SKIPPED_OF = "DELETE FROM skipped WHERE topic = ?"
SET_DONE = _put("done", "counter")
DROP_DONE = "DELETE FROM done WHERE producer = ?"
SET_COMMITTED = _put("committed", "label expires")
DROP_COMMITTED = "DELETE FROM committed WHERE producer = ? AND counter = ?"
SET_BEGUN = _put("begun", "attempt")
DROP_BEGUN = "DELETE FROM begun WHERE producer = ?"
SET_RUN = _put("run", "id")
ADD_STAGED = """
    INSERT INTO staged
        (id, producer, counter, part, topic, count, size, time, constants, segment, checksum, body, sum)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12,
        seal('staged', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11))
"""
GET_STAGED = f"{ROWS['staged']} WHERE id = ?"
GET_STAGED_BODY = f"SELECT {_BODY} FROM staged WHERE id = ?"
DROP_STAGED = "DELETE FROM staged WHERE id = ?"
SET_PRODUCER = _put("producer", "state")
DROP_PRODUCER = "DELETE FROM producer WHERE topic = ? AND producer = ?"
ADD_PAGE = _put("page")
DROP_BLOCK = "DELETE FROM block WHERE id = ?"

# --- reading

# The page that holds an offset, and those after it. Bound: topic, topic, offset, offset, stop.
PAGES_FROM = """
    SELECT topic, base, end, last_block, runs, sum FROM page
    WHERE topic = ? AND base >= coalesce((SELECT max(base) FROM page WHERE topic = ? AND base <= ?), ?) AND base < ?
    ORDER BY base LIMIT ?
"""
PAGE_AT = f"{ROWS['page']} WHERE topic = ? AND base <= ? ORDER BY base DESC LIMIT 1"
GET_BLOCK = f"SELECT {_BLOCK} FROM block WHERE id = ?"

# --- giving space back

LIVE_SEGMENTS = """
    SELECT DISTINCT segment FROM block WHERE segment IS NOT NULL
    UNION SELECT segment FROM staged WHERE segment IS NOT NULL
"""

GET_HEADER = f"SELECT {_HEADER} FROM block WHERE id = ?"
HEADERS_BETWEEN = f"""
    SELECT id, {_HEADER}, coalesce(length(body), 0), {_SEGMENT} FROM block WHERE id > ? AND id <= ? ORDER BY id LIMIT ?
"""
PAGES_BELOW = f"{ROWS['page']} WHERE topic = ? AND base < ? ORDER BY base LIMIT ?"
DROP_PAGE = "DELETE FROM page WHERE topic = ? AND base = ?"
DROP_UNFINISHED = "DELETE FROM page WHERE last_block > ?"
