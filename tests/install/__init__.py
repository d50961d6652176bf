"""The package as people install it: wheels, sdists and editable installs in fresh environments."""
