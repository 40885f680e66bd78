"""What a console and those who run a server look at, and what neither stores nor gateway know by themselves."""
