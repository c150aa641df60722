"""What Stafeta costs: programs that print figures, beside the bars that they have to pass. (docs/benchmarks.md)"""
