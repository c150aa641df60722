"""Files of the page that explains the API."""
