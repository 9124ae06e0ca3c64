-- Of files that their site has no more, the one that vanished later wins: the first number of a rank says when, and is below 0.
-- Those that were kept before rank lowest. When they vanished is not known.

UPDATE catalog_file SET rank_unsequence = -2147483648 WHERE rank_unsequence = -1;
