"""Two architectures side by side: what differs, in the words of papers, and what each difference costs."""
