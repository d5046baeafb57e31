# SPDX-License-Identifier: Apache-2.0
"""Tests of the study runner: /usr/bin/python3 -m unittest discover -s tools/study/tests -t tools"""
