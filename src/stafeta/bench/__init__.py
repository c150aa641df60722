"""`stafeta bench`: publishers and subscribers, each a process of its own, and what they have measured."""
