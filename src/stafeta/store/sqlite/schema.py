"""The database's schema, its versions, and every statement that is run against it."""

APPLICATION_ID = 0x53544146  # "STAF"

# One script a version. A database of version n is brought forward by the scripts after its n-th, in one transaction.
MIGRATIONS = [
    """
    -- Single values: the last client id given out, the next position, the last checkpointed block.
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
]

# --- at start-up

TOPICS = """
    SELECT id, name, first, next, present, keeps_last,
        (SELECT runs FROM page WHERE topic = topic.id ORDER BY base DESC LIMIT 1)
    FROM topic
"""
SUBSCRIPTIONS = "SELECT id, client, filter, start, durable FROM subscription"
CURSORS = "SELECT subscription, topic, floor, above FROM cursor"
PRODUCERS = "SELECT topic, producer, state FROM producer"
STAGED = "SELECT id, producer, counter, part, topic, count, size, time FROM staged"
DONE = "SELECT producer, counter FROM done"
META = "SELECT key, value FROM meta"
HEADERS_AFTER = "SELECT id, header FROM block WHERE id > ? ORDER BY id"
BLOCKS_AFTER = "SELECT id, header, body, checksum, segment FROM block WHERE id > ? ORDER BY id"
LAST_BLOCK = "SELECT coalesce(max(id), 0) FROM block"

# --- one commit

SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
ADD_BLOCK = "INSERT INTO block (id, header, segment, body, checksum) VALUES (?, ?, ?, ?, ?)"
SET_TOPIC = """
    INSERT INTO topic VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
    SET first = excluded.first, next = excluded.next, present = excluded.present, keeps_last = excluded.keeps_last
"""
SET_SUBSCRIPTION = """
    INSERT INTO subscription VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET durable = excluded.durable
"""
DROP_SUBSCRIPTION = "DELETE FROM subscription WHERE id = ?"
DROP_CURSORS_OF = "DELETE FROM cursor WHERE subscription = ?"
SET_CURSOR = """
    INSERT INTO cursor VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET floor = excluded.floor, above = excluded.above
"""
DROP_CURSOR = "DELETE FROM cursor WHERE subscription = ? AND topic = ?"
SET_DONE = "INSERT INTO done VALUES (?, ?) ON CONFLICT DO UPDATE SET counter = excluded.counter"
ADD_STAGED = """
    INSERT INTO staged (id, producer, counter, part, topic, count, size, time, constants, segment, body, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
GET_STAGED = "SELECT producer, count, size, constants, segment, body, checksum FROM staged WHERE id = ?"
DROP_STAGED = "DELETE FROM staged WHERE id = ?"
SET_PRODUCER = "INSERT INTO producer VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET state = excluded.state"
ADD_PAGE = "INSERT INTO page VALUES (?, ?, ?, ?, ?)"
SET_SHARE = "INSERT OR REPLACE INTO share VALUES (?, ?)"
DROP_BLOCK = "DELETE FROM block WHERE id = ?"

# --- reading

# The page that holds an offset, and those after it. Bound: topic, topic, offset, offset, stop.
PAGES_FROM = """
    SELECT runs FROM page
    WHERE topic = ? AND base >= coalesce((SELECT max(base) FROM page WHERE topic = ? AND base <= ?), ?) AND base < ?
    ORDER BY base LIMIT 16
"""
PAGE_AT = "SELECT runs FROM page WHERE topic = ? AND base <= ? ORDER BY base DESC LIMIT 1"
GET_BLOCK = "SELECT header, body, checksum, segment FROM block WHERE id = ?"

# --- giving space back

LIVE_SEGMENTS = """
    SELECT DISTINCT segment FROM block WHERE segment IS NOT NULL
    UNION SELECT segment FROM staged WHERE segment IS NOT NULL
"""

PAGES_BELOW = "SELECT base, end, runs FROM page WHERE topic = ? AND base < ? ORDER BY base LIMIT ?"
DROP_PAGE = "DELETE FROM page WHERE topic = ? AND base = ?"
DROP_UNFINISHED = "DELETE FROM page WHERE last_block > ?"
TAKE_SHARE = "UPDATE share SET runs = runs - ?2 WHERE block = ?1 RETURNING runs"
DROP_SHARE = "DELETE FROM share WHERE block = ?"
