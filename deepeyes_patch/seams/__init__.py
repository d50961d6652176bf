"""All knowledge of SGLang's code. A *seam* is an SGLang function that a repair wraps, overrides or relies on.

``table``        one row for each seam; all code that looks for, wraps or lists seams reads it
``table_deepstack`` the rows of ``deepstack``, in a file of their own
``table_mrope``  the rows of ``mrope``, in a file of their own
``table_server`` the rows of ``processor`` outside the processor class, in a file of their own
``rows``         what a row is made of
``facts``        facts about a release, which decide whether a row applies or is required
``examine``      checks that the functions which a repair needs exist, in the shape that it needs
``live``         lets ``examine`` look at imported modules
``source``       lets ``examine`` look at source files, without importing them
``wrapping``     puts wrappers on classes and modules, and takes them off
``families``     the model types that are served, and what is read from a model's configuration
"""
