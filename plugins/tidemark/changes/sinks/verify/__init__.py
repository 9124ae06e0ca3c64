"""Is each table of a sink as at the source?

compare  pure: rows of a table in two places, key range by key range
held     rows of a table as the files of a site hold them
verify   tables at the source and in the sink, both at one place
"""
