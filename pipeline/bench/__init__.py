"""Benches: one stage alone (`stand`), the tokenizer's batches (`encoding`), and the whole server (`whole`).

Everything is run as config names it: the class, its options, the bounds of its inbox.
"""
