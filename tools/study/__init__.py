# SPDX-License-Identifier: Apache-2.0
"""Studies: experiments with factors and levels, and reports of their results. See docs/how-to/studies.md."""
