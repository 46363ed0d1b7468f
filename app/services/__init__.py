"""Use cases, one module each; pages and the command line call these and nothing below."""
