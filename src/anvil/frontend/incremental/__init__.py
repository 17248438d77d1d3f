"""From a whole sequence to a few new tokens of it: the proof that a program works token by token, and the rewriting.

``roles`` says what the dimensions of a value are; ``rebuild`` holds the program under construction; the other modules
are rules, one family of operations each.
"""
