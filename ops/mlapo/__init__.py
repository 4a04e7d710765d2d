"""MLA pre-processing: from the normalised hidden state to queries and cache rows."""
