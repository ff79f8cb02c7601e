"""Programs that a launcher starts to measure inside of a world of ranks; each writes its samples as JSON."""
