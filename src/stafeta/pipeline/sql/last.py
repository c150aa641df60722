"""Statements that ask for the last messages of one topic: those before need not be read.

1. It is `... WHERE topic = 'x' ... ORDER BY offset DESC LIMIT n`, or aggregates of which each is `max_by(..., offset)`
   or `max(offset)`, of one of the views. Offsets of a topic are known without reading, so it is known where its last
   messages begin; and if these make up all rows that are asked for, none before them does.
2. Spark's analysed plan says whether it is that. Columns are told by what they are, and not by their names; whatever is
   not known here makes a statement another one.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stafeta.pipeline.sql.read_only import each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAY_BE: Final = re.compile(r"\btopic\b.*\boffset\b|\boffset\b.*\btopic\b", re.IGNORECASE | re.DOTALL)
_VIEWS: Final = ("messages", "readings")
_LATEST: Final = {
    "MaxBy": "orderingExpr",
    "Max": "child",
}  # functions, and which of their parts is the offset


class Last(NamedTuple):
    """What a statement asks for: the last rows, so many, of a topic."""

    topic: str
    rows: int
    every: bool
    """Whether each message of the topic is a row."""
    plan: Any
    """Spark's plan of these rows, and those before."""

    def has_enough(self, spark: "SparkSession") -> bool:
        """Whether there are so many rows among the messages that the views have now."""
        dataset = getattr(getattr(spark._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")  # type: ignore[union-attr]
        return bool(dataset.ofRows(spark._jsparkSession, self.plan).limit(self.rows).count() >= self.rows)


class _Source(NamedTuple):
    view: str
    topic: Any
    offset: Any
    filters: list[Any]


def last_of(frame: "DataFrame", statement: str) -> Last | None:
    """The last messages of a topic that a statement asks for; None where it is another one."""
    if not _MAY_BE.search(statement):
        return None
    plan: Any = frame._jdf.queryExecution().analyzed()
    if not plan.subqueriesAll().isEmpty():
        return None
    rows = None
    while plan.nodeName() in ("Project", "GlobalLimit", "LocalLimit"):
        if plan.nodeName() != "Project":
            limit = plan.limitExpr()
            if _kind(limit) != "Literal" or rows not in (None, limit.value()):
                return None
            rows = limit.value()
        plan = plan.child()
    kind, below = plan.nodeName(), plan.child() if plan.nodeName() in ("Sort", "Aggregate") else None
    source = None if below is None else _source(below)
    if source is None:
        return None
    if kind == "Sort":
        found = bool(rows) and _is_latest_first(plan, source.offset)
    else:
        found, rows = _is_of_the_latest(plan, source), 1
    others = [one for one in source.filters if _topic_in(one, source.topic) is None]
    topics = {topic for one in source.filters if (topic := _topic_in(one, source.topic)) is not None}
    if not found or len(topics) != 1 or rows is None:
        return None
    return Last(topics.pop(), rows, source.view == "messages" and not others, below)


def _source(plan: Any) -> _Source | None:
    """The view that a plan is of, if it does nothing but filter it and make columns of each row."""
    filters: list[Any] = []
    while (kind := plan.nodeName()) in ("Project", "Filter", "SubqueryAlias"):
        if kind == "Filter":
            filters += _conjuncts(plan.condition())
        plan = plan.child()
    if kind != "View":
        return None
    name = plan.desc().identifier()
    if (
        name.database().isDefined() or name.table() not in _VIEWS
    ):  # of a database: a user's, whatever its name
        return None
    columns = {one.name(): one for one in each(plan.output())}
    return _Source(name.table(), columns["topic"], columns["offset"], filters)


def _conjuncts(condition: Any) -> Iterator[Any]:
    if _kind(condition) == "And":
        yield from _conjuncts(condition.left())
        yield from _conjuncts(condition.right())
    else:
        yield condition


def _topic_in(condition: Any, topic: Any) -> str | None:
    """The topic that a condition asks for."""
    if _kind(condition) != "EqualTo":
        return None
    for one, other in ((condition.left(), condition.right()), (condition.right(), condition.left())):
        if one.semanticEquals(topic) and _kind(other) == "Literal" and other.value() is not None:
            return str(other.value().toString() if hasattr(other.value(), "toString") else other.value())
    return None


def _is_latest_first(sort: Any, offset: Any) -> bool:
    first = sort.order().head()
    return (
        bool(getattr(sort, "global")())
        and first.direction().sql() == "DESC"
        and bool(first.child().semanticEquals(offset))
    )


def _is_of_the_latest(aggregate: Any, source: _Source) -> bool:
    if not all(one.semanticEquals(source.topic) for one in each(aggregate.groupingExpressions())):
        return False
    functions = [found for one in each(aggregate.aggregateExpressions()) for found in _functions(one)]
    return bool(functions) and all(
        (part := _LATEST.get(_kind(one.aggregateFunction()))) is not None
        and one.filter().isEmpty()
        and bool(getattr(one.aggregateFunction(), part)().semanticEquals(source.offset))
        for one in functions
    )


def _functions(expression: Any) -> Iterator[Any]:
    if _kind(expression) == "AggregateExpression":
        yield expression
        return
    for child in each(expression.children()):
        yield from _functions(child)


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
