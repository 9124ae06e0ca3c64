"""Slots, ring, partition table, balance, membership, migration: what the centre's nodes hold, decided by pure functions."""
