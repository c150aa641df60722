"""The database's schema, its versions, and every statement that is run against it."""

APPLICATION_ID = 0x53544146  # "STAF"

# One script a version. A database of version n is brought forward by the scripts after its n-th, in one transaction.
MIGRATIONS = [
    """
    -- Single values: the last client id given out, the next position, the last checkpointed block.
    CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

    -- The log, in the order in which it was committed. Only ever appended to, or deleted from.
    CREATE TABLE block (id INTEGER PRIMARY KEY, header BLOB NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL);

    -- Which rows of which block hold which messages of a topic, for the blocks up to the checkpoint. Of later blocks
    -- the headers say so; they are read again at start-up. Written in large portions, since it is in topic order
    -- and the log is not.
    CREATE TABLE run (
        topic INTEGER NOT NULL, base INTEGER NOT NULL, count INTEGER NOT NULL,
        block INTEGER NOT NULL, row INTEGER NOT NULL, time INTEGER NOT NULL, size INTEGER NOT NULL,
        PRIMARY KEY (topic, base)
    ) WITHOUT ROWID;
    CREATE INDEX run_block ON run (block);

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
]

# --- at start-up

TOPICS = """
    SELECT id, name, first, next, present, keeps_last,
        (SELECT base + count FROM run WHERE topic = topic.id ORDER BY base DESC LIMIT 1),
        (SELECT size FROM run WHERE topic = topic.id ORDER BY base DESC LIMIT 1)
    FROM topic
"""
SUBSCRIPTIONS = "SELECT id, client, filter, start FROM subscription"
CURSORS = "SELECT subscription, topic, floor, above FROM cursor"
PRODUCERS = "SELECT topic, producer, state FROM producer"
STAGED = "SELECT id, producer, counter, part, topic, count, size, time FROM staged"
DONE = "SELECT producer, counter FROM done"
META = "SELECT key, value FROM meta"
BLOCKS_AFTER = "SELECT id, header, body, checksum FROM block WHERE id > ? ORDER BY id"
LAST_BLOCK = "SELECT coalesce(max(id), 0) FROM block"

# --- one commit

SET_META = "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
ADD_BLOCK = "INSERT INTO block VALUES (?, ?, ?, ?)"
SET_TOPIC = """
    INSERT INTO topic VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
    SET first = excluded.first, next = excluded.next, present = excluded.present, keeps_last = excluded.keeps_last
"""
SET_SUBSCRIPTION = "INSERT INTO subscription VALUES (?, ?, ?, ?)"
DROP_SUBSCRIPTION = "DELETE FROM subscription WHERE id = ?"
DROP_CURSORS_OF = "DELETE FROM cursor WHERE subscription = ?"
SET_CURSOR = """
    INSERT INTO cursor VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET floor = excluded.floor, above = excluded.above
"""
DROP_CURSOR = "DELETE FROM cursor WHERE subscription = ? AND topic = ?"
SET_DONE = "INSERT INTO done VALUES (?, ?) ON CONFLICT DO UPDATE SET counter = excluded.counter"
ADD_STAGED = "INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
GET_STAGED = "SELECT producer, counter, count, size, constants, body, checksum FROM staged WHERE id = ?"
DROP_STAGED = "DELETE FROM staged WHERE id = ?"
SET_PRODUCER = "INSERT INTO producer VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET state = excluded.state"
ADD_RUN = "INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?)"
DROP_BLOCK = "DELETE FROM block WHERE id = ?"

# --- reading

# The run that holds an offset, and those after it. Bound: topic, topic, offset, offset, stop.
RUNS_FROM = """
    SELECT topic, base, count, block, row, time, size FROM run
    WHERE topic = ? AND base >= coalesce((SELECT max(base) FROM run WHERE topic = ? AND base <= ?), ?) AND base < ?
    ORDER BY base LIMIT 256
"""
RUN_AT = """
    SELECT topic, base, count, block, row, time, size FROM run
    WHERE topic = ? AND base <= ? ORDER BY base DESC LIMIT 1
"""
GET_BLOCK = "SELECT header, body, checksum FROM block WHERE id = ?"

# --- giving space back

# Runs wholly below an offset, the oldest first. Bound: topic, offset, offset, how many.
DROP_RUNS = """
    DELETE FROM run WHERE topic = ?1 AND base < ?2 AND base + count <= ?2
    AND base < coalesce((SELECT base FROM run WHERE topic = ?1 ORDER BY base LIMIT 1 OFFSET ?3), ?2)
    RETURNING block
"""
DROP_BLOCK_IF_FREE = "DELETE FROM block WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM run WHERE block = ?1)"
