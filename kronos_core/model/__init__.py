"""The Kronos tokenizer and predictor, and where to get their weights."""
