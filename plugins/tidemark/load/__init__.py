"""Landing to catalog: check, own, place, swap, merge, read."""
