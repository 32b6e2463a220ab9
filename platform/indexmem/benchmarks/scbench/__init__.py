"""SCBench: several questions about one long context (arXiv 2412.10319; github.com/microsoft/MInference, MIT)."""
