"""What is said to the user."""


class StudyError(Exception):
    """A study cannot run. The message names the place and the remedy."""
