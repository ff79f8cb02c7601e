"""What a matrix run says: one HTML file that needs nothing else, and a summary in Markdown."""
