"""Sampling futures and the forecast they form."""
