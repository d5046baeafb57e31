# SPDX-License-Identifier: Apache-2.0
"""Errors that the user sees."""


class StudyError(Exception):
    """A study cannot run. The message names the place and the remedy."""
