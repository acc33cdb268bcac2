"""Scripts that measure on hardware that the tests cannot count on."""
