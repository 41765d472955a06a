"""Guests that swap: the Python part of `lab run fastswap`."""
