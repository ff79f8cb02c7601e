"""Programs that compare: the same training in different surroundings."""
