"""What changes weights: the population of members, its schedule, its steps and its checkpoints."""
