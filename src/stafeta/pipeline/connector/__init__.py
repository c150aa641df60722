"""Topics as Spark tables. (docs/spark.md)"""
