"""Breadth: every overload of an op library, in every element type PyTorch gives it, from a few lines of data each.

``ops/NAME.py`` exports ``OVERLOADS`` beside or instead of ``SPECS``. One overload is compiled once per target, in all
its types and forms together, with every size dynamic, and then run on many examples.
"""
