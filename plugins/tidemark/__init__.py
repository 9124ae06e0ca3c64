"""Tidemark keeps a data centre in step with its edge sites: every sealed TsFile, once, unchanged, provably."""

__version__ = "0.1.0"
