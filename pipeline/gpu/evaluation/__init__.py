"""How good a model still is with its weights or its KV made smaller."""
