"""Keys and values: how they are stored, and where else than on the device."""
