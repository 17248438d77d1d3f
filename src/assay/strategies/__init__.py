"""Where test inputs come from: sizes around the kernel's own tiles, named kinds of values, memory layouts."""
