"""One page out of many people's results: rows of a documented format, apart by protocol, compared by `results`."""
