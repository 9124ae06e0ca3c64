"""What a TsFile is: names, companions, integrity, statistics, deletions, reader, writer."""
