"""Statements of SQL: carried out in a session, and asked for by others."""
