"""Runs the commands of a study, and keeps what they measure."""
