"""Stafeta as a part of data pipelines: other systems read its topics and write to them."""
