"""Scores of forecasts against what happened, and what models get wrong."""
