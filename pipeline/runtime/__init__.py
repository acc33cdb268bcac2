"""The actor runtime: inbox, stage, supervisor, bridge, trace. Knows no tokens and no models."""
