"""Data sets: found on disk, prepared once (index and packed cache), split, and fed to training.

`kinds` lists the kinds of data sets; `voc`, `cityscapes`, `pets`, `folder` and `synthetic` find their samples;
`prepare` reads and packs them; `split` holds images out; `loaders` makes batches. Only `augment` and `loaders` import
torch. Nothing here knows of losses, metrics or searches.
"""
