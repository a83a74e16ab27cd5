"""`univerb lab`: what measures and reproduces."""
