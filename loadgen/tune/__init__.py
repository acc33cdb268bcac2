"""One variable at a time: which value of a setting to take, and what it costs elsewhere."""
