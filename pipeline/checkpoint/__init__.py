"""Model references and model files: find, fetch, read and describe them. Knows no torch and no stages."""
