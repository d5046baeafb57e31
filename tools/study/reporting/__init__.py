# SPDX-License-Identifier: Apache-2.0
"""Analyses results, and draws the report."""
