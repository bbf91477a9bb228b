"""What can be asked of an exported model: reads the document and the graph, needs no torch."""
