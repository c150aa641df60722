"""Backups of a data folder, made while its broker runs, and folders made of them."""
