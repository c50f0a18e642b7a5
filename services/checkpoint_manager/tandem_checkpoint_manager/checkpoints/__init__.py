"""`tandem checkpoints`: look at any store, take versions out of it, let old ones go. No cluster, no torch.

cli.py      the commands
find.py     which version is meant
arrays.py   a safetensors file as float32 numpy arrays, a block of rows at a time
compare.py  norms of an adapter's modules, two versions side by side
export.py   a version as a folder: as published, or the base model with the adapter merged
"""
