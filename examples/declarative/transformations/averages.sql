CREATE MATERIALIZED VIEW averages AS
SELECT topic, count(*) AS readings, round(avg(number), 2) AS average FROM readings GROUP BY topic
