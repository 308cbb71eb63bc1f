"""From a source of any format to encoded, scaled, shuffled rows: NumPy and Arrow only."""
