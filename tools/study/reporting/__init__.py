"""Analyses results, and draws the report."""
