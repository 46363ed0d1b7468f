"""What a service says when it cannot do what was asked."""


class ServiceError(ValueError):
    """A message for the person in front of the page or the command line: what, where, remedy."""
