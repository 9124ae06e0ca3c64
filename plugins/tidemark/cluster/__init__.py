"""Slots, ring, partition table, balance, migration: what the centre's nodes hold, decided by pure functions."""
