"""Guests that swap: what `lab run fastswap` runs."""
