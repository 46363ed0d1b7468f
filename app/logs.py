"""Log lines with UTC time stamps, the same in the server and in its workers."""

import logging
import time


def log_to_stderr(*names: str) -> None:
    """Sends these loggers' lines, from INFO up, to standard error; once is enough."""
    formatter = logging.Formatter("%(asctime)sZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    for name in names:
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
