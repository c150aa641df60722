"""Which statements only read. That of who asks through a page nothing else is carried out is in test_sql_page."""

from pathlib import Path

import pytest
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from stafeta.errors import InvalidQuery
from stafeta.pipeline.sql.read_only import MOST, check_reads_only

READING = (
    "SELECT topic, avg(number) AS mean FROM readings WHERE timestamp > now() - INTERVAL 1 HOUR GROUP BY topic",
    "WITH a AS (SELECT topic, count(*) AS n FROM messages GROUP BY ALL) SELECT *, rank() OVER (ORDER BY n) FROM a",
    "SELECT topic FROM messages WHERE topic IN (SELECT topic FROM dead) AND EXISTS (SELECT 1 FROM rollups) LIMIT 5;",
    "SELECT DISTINCT kind FROM messages UNION ALL SELECT 'x' EXCEPT SELECT 'y' ORDER BY 1 LIMIT 3 OFFSET 1",
    "SELECT m.topic, r.number FROM messages AS m LEFT JOIN readings AS r USING (topic, offset)",
    "SELECT text:temperature::double, parse_json(text), from_json(text, 'a INT').a FROM messages",
    "SELECT * FROM range(3) AS t(a), LATERAL (SELECT a + 1)",
    "SELECT a FROM (VALUES (1), (2)) AS t(a) LATERAL VIEW explode(array(a, a)) x AS y",
    "SELECT * FROM rollups PIVOT (sum(count) FOR size IN ('1m', '1h'))",
    "SELECT topic, sum(offset) FILTER (WHERE kind = 'int') FROM messages GROUP BY CUBE (topic) HAVING max(offset) > 1",
    "SELECT CASE WHEN kind LIKE 'f%' THEN element_at(map('a', 1), 'a') END, CAST(payload AS STRING) FROM messages",
    "SELECT transform(array(1, 2), x -> x + 1), uuid(), typeof(1)",
    "FROM messages |> WHERE offset > 1 |> SELECT topic",
    "TABLE messages",
    "SHOW TABLES",
    "SHOW COLUMNS IN messages",
    "DESCRIBE messages",
)
MORE = (
    "INSERT OVERWRITE DIRECTORY '{folder}/out' USING parquet SELECT 1",
    "CREATE TABLE t USING parquet LOCATION '{folder}/out' AS SELECT 1",
    "CREATE TEMP VIEW v AS SELECT 1",
    "FROM messages INSERT INTO t SELECT 1",
    "DROP VIEW messages",
    "CACHE TABLE messages",
    "SET spark.sql.ansi.enabled=false",
    "SET",
    "SET -v",
    "SET spark.connect.authenticate.token",
    "RESET",
    "ADD JAR '{folder}/a.jar'",
    "USE other",
    "EXPLAIN SELECT * FROM text.`{folder}/secret`",
    "DESCRIBE text.`{folder}/secret`",
    "DESCRIBE QUERY SELECT reflect('java.lang.System', 'getenv')",
    "BEGIN DROP VIEW messages; END",
    "EXECUTE IMMEDIATE 'DROP VIEW messages'",
    "SELECT TRANSFORM(topic) USING 'touch {folder}/out' FROM messages",
    "SELECT * FROM text.`{folder}/secret`",
    "SELECT * FROM spark_catalog.default.t",
    "SELECT 1 WHERE EXISTS (SELECT * FROM text.`{folder}/secret`)",
    "WITH a AS (SELECT * FROM text.`{folder}/secret`) SELECT 1",
    "SELECT * FROM range(2), LATERAL (SELECT * FROM text.`{folder}/secret`)",
    "SELECT (SELECT max(value) FROM text.`{folder}/secret`)",
    "SELECT * FROM IDENTIFIER('text.`{folder}/secret`')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'exit', 1)",
    "SELECT reflect('java.lang.System', 'exit', 1)",
    "SELECT `Java_Method`('java.lang.System', 'exit', 1)",
    "SELECT try_reflect('java.lang.System', 'exit', 1)",
    "SELECT java_method('java.lang.System', 'getenv', 'PATH')",
    "SELECT reflect('java.lang.System', 'getProperty', 'java.home')",
    "SELECT try_reflect('java.lang.System', 'getenv', 'PATH')",
    "SELECT current_setting('spark.connect.authenticate.token')",
    "SELECT system.builtin.reflect('java.lang.System', 'exit', 1)",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'exit', x))",
    "SELECT sum(1) FILTER (WHERE reflect('java.lang.System', 'getenv') IS NULL)",
    "SELECT 1 ORDER BY reflect('java.lang.System', 'exit', 1)",
    "SELECT 1 LIMIT int(reflect('java.lang.Math', 'abs', 1))",
    "SELECT a FROM messages LATERAL VIEW explode(array(reflect('java.lang.System', 'exit', 1))) x AS a",
    "VALUES (reflect('java.lang.System', 'exit', 1))",
    "SELECT * FROM explode(array(reflect('java.lang.System', 'exit', 1)))",
    "SELECT sum(offset) OVER w FROM messages WINDOW w AS (ORDER BY reflect('java.lang.System', 'exit', 1))",
    "SELECT /*+ REPARTITION(reflect('java.lang.Math', 'abs', 1)) */ 1",
    "SELECT * FROM messages TIMESTAMP AS OF reflect('java.lang.System', 'exit', 1)",
    "SELECT from_protobuf(payload, 'M', '{folder}/secret') FROM messages",
    "SELECT * FROM python_worker_logs()",
    "SELECT my_own(1)",
)


@pytest.mark.parametrize("statement", READING)
def test_what_reads_the_views_is_let_through(spark: SparkSession, statement: str) -> None:
    check_reads_only(spark, statement)


@pytest.mark.parametrize("statement", MORE)
def test_what_may_do_more_is_refused_before_anything_is_done(
    spark: SparkSession, tmp_path: Path, statement: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(
        InvalidQuery, match=r"^(Here one only reads, |There is no function |'.+' is not a view)"
    ):
        check_reads_only(spark, statement.format(folder=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_what_is_no_sql_is_for_spark_to_say(spark: SparkSession) -> None:
    for statement in ("SELEC 1", "SELECT 1; DROP VIEW messages", ""):
        with pytest.raises(ParseException):
            check_reads_only(spark, statement)


def test_a_statement_has_only_so_many_parts(spark: SparkSession) -> None:
    with pytest.raises(InvalidQuery, match=r"more than 5,000 parts"):
        check_reads_only(spark, f"SELECT 1 IN ({', '.join(['1'] * MOST)})")
