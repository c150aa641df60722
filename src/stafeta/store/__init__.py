"""Where the log lives: a narrow port (`port`), the embedded store (`sqlite`) and one in memory for tests (`memory`)."""
