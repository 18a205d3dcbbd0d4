"""The waist: one schema that probes and theory write, and that analysis reads."""
