"""LongBench and LongBench-E (Bai et al. 2024, arXiv 2308.14508; github.com/THUDM/LongBench, MIT)."""
