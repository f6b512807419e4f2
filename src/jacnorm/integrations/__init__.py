"""At home in other trainers. Nothing here is imported by the package root: import the one you use."""
