"""The files of the dashboard."""
