"""Whether a statement only reads the views, by Spark's own parser: for those who ask through a page.

1. What is not known to be harmless is refused. Spark's SQL can write files, start programs (TRANSFORM), call any method
   of the JVM (reflect), and read any file by its path (text.`/etc/passwd`).
2. The parsed plan is looked at, before anything is resolved: while a plan is analysed, commands are carried out, names
   by IDENTIFIER evaluated, and files listed. Each kind of node is in a list here, and so is each kind of function.
3. A table has one name: a view, or a table of the statement's own WITH. Names with a dot may be files.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from stafeta.errors import InvalidQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALYST: Final = "org.apache.spark.sql.catalyst."
MOST: Final = 5000  # parts of a statement, each of which is looked at
# Nodes whose parts are all found by `expressions`, `subqueries`, `children` and `innerChildren`: WINDOW clauses and
# hints have others, and so are not among them.
_NODES: Final = frozenset(
    _CATALYST + name
    for name in (
        "analysis.CurrentNamespace$",
        "analysis.UnresolvedHaving",
        "analysis.UnresolvedInlineTable",
        "analysis.UnresolvedRelation",
        "analysis.UnresolvedSubqueryColumnAliases",
        "analysis.UnresolvedTVFAliases",
        "analysis.UnresolvedTableOrView",
        "analysis.UnresolvedTableValuedFunction",
        "expressions.PipeOperator",
        *(
            f"plans.logical.{name}"
            for name in (
                "Aggregate",
                "DescribeRelation",
                "Distinct",
                "Except",
                "Filter",
                "Generate",
                "GlobalLimit",
                "Intersect",
                "Join",
                "LateralJoin",
                "LocalLimit",
                "LocalRelation",
                "Offset",
                "OneRowRelation",
                "Pivot",
                "Project",
                "Sample",
                "ShowColumns",
                "ShowTables",
                "ShowViews",
                "Sort",
                "SubqueryAlias",
                "Union",
                "Unpivot",
                "UnresolvedWith",
            )
        ),
    )
)
_TABLES: Final = tuple(
    _CATALYST + f"analysis.{name}" for name in ("UnresolvedRelation", "UnresolvedTableOrView")
)
_TABLE_FUNCTION: Final = _CATALYST + "analysis.UnresolvedTableValuedFunction"
# Expressions that stand for others are in lists, too; all of the other package are what they look like.
_EXPRESSIONS: Final = _CATALYST + "expressions."
_FUNCTION: Final = _CATALYST + "analysis.UnresolvedFunction"
_GENERATOR: Final = _CATALYST + "analysis.UnresolvedGenerator"
_UNRESOLVED: Final = frozenset(
    _CATALYST + f"analysis.{name}"
    for name in (
        *(
            "MultiAlias",
            "UnresolvedAlias",
            "UnresolvedAttribute",
            "UnresolvedExtractValue",
            "UnresolvedOrdinal",
        ),
        "UnresolvedStar",
    )
)
# Not those of XML, Avro and Protobuf, which read files that are named in their arguments.
_GROUPS: Final = frozenset(
    f"{name}_funcs"
    for name in (
        *(
            "agg",
            "array",
            "bitwise",
            "collection",
            "conditional",
            "conversion",
            "csv",
            "datetime",
            "generator",
        ),
        *("hash", "json", "lambda", "map", "math", "predicate", "sketch", "st", "string", "struct", "url"),
        *("variant", "vector", "window"),
    )
)
_OTHERS: Final = frozenset(
    (
        *(
            "assert_true",
            "bitmap_bit_position",
            "bitmap_bucket_number",
            "bitmap_count",
            "monotonically_increasing_id",
        ),
        *("raise_error", "spark_partition_id", "typeof", "uuid", "version"),
    )
)
_TABLE_FUNCTIONS: Final = frozenset(
    (
        *(
            "explode",
            "explode_outer",
            "inline",
            "inline_outer",
            "json_tuple",
            "posexplode",
            "posexplode_outer",
        ),
        *("range", "stack", "variant_explode", "variant_explode_outer"),
    )
)
_KINDS: Final = "SELECT, VALUES, SHOW TABLES, SHOW COLUMNS and DESCRIBE"


def check_reads_only(spark: "SparkSession", statement: str) -> None:
    """Raises `InvalidQuery` where a statement may do more than read; what Spark cannot read is raised as it is."""
    session: Any = spark._jsparkSession
    parts = 0
    waiting = [session.sessionState().sqlParser().parsePlan(statement)]
    while waiting:
        plan = waiting.pop()
        kind = plan.getClass().getName()
        if kind not in _NODES:
            raise _refused(kind)
        _check_node(plan, kind)
        for expression in _with_children(plan.expressions()):
            _check_expression(spark, expression)
            parts += 1
            if parts > MOST:
                raise InvalidQuery(
                    f"The statement has more than {MOST:,} parts; 'stafeta sql' takes longer ones."
                )
        waiting += [*each(plan.children()), *each(plan.innerChildren()), *each(plan.subqueries())]


def _check_node(plan: Any, kind: str) -> None:
    if kind in _TABLES:
        names = list(each(plan.multipartIdentifier()))
        if len(names) != 1:
            raise InvalidQuery(f"{'.'.join(names)!r:.200} is not a view: only views are read here.")
    elif kind == _TABLE_FUNCTION:
        names = list(each(plan.name()))
        if len(names) != 1 or names[0].lower() not in _TABLE_FUNCTIONS:
            raise _no_function(".".join(names))


def _check_expression(spark: Any, expression: Any) -> None:
    kind = expression.getClass().getName()
    if kind == _FUNCTION:
        _check_function(spark, list(each(expression.nameParts())))
    elif kind == _GENERATOR:
        name = expression.name()
        qualified = name.database().isDefined() or name.catalog().isDefined()
        _check_function(spark, [name.unquotedString()] if qualified else [name.funcName()])
    elif kind not in _UNRESOLVED and not kind.startswith(_EXPRESSIONS):
        raise _refused(kind)


def _check_function(spark: Any, names: list[str]) -> None:
    name = ".".join(names)
    if len(names) != 1 or not (name.lower() in _OTHERS or _group(spark, name.lower()) in _GROUPS):
        raise _no_function(name)


def _group(spark: Any, name: str) -> str:
    """Which kind of Spark's own functions one is; empty where it is none of them."""
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry
    found = registry.expressions().get(name)
    return str(found.get()._1().getGroup()) if found.isDefined() else ""


def _no_function(name: str) -> InvalidQuery:
    return InvalidQuery(f"There is no function {name!r:.100} that may be used here.")


def _refused(kind: str) -> InvalidQuery:
    name = kind.rpartition(".")[2].strip("$")
    return InvalidQuery(
        f"Here one only reads, with {_KINDS}, and without {name}: 'stafeta sql' has all of SQL."
    )


def each(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Scala's."""
    return (sequence.apply(number) for number in range(sequence.size()))


def _with_children(expressions: Any) -> Iterator[Any]:
    """Expressions, and all that they are made of."""
    waiting = list(each(expressions))
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting += each(expression.children())
