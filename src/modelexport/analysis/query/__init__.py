"""Questions about one file: selectors, statistics, the analysis report."""
