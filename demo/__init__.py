"""The demonstration: a whole embedded deployment that tells a story on real data and checks its own outcome."""
