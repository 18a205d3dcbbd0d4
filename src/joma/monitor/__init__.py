"""The live side: a model watched while it trains, and left exactly as it would have been."""
