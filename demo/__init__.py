"""The demonstration: a whole embedded deployment that syncs real data and checks its own outcome."""
