# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a study, and keeps what they measure."""
