"""What means over benchmarks hide: instructions that are lost one by one, and a system prompt that is given away."""
