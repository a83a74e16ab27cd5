"""How long the same text takes with univerb and with what people use instead."""
