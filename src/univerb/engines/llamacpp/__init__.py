"""The llama.cpp engine: GGUF files on a CPU."""
