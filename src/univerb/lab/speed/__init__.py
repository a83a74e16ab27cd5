"""How fast univerb is: whole requests beside other systems, and its parts by themselves."""
