"""All that knows SGLang. A *seam* is a function of SGLang's at which a repair takes hold.

``table``     one row for each seam: everything that looks for, wraps or lists seams reads it
``rows``      what a row is made of
``facts``     what a release has or has not, by which a row applies or is required
``examine``   the judge: do the functions that a repair needs stand there, in the shape that it needs?
``live``      what the judge sees of imported modules
``source``    what the judge sees of source files, without importing them
``wrapping``  puts wrappers on classes and modules, and takes them off
``families``  the model types that are served, and what is read from a model's configuration
"""
