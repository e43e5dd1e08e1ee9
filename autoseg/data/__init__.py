"""Data sets: found on disk, prepared once (index, statistics, packed cache), split, and fed to training.

`voc`, `cityscapes`, `folder` and `synthetic` find the samples; `prepare` reads and packs them; `split` holds images
out; `loaders` feeds them. Only `augment` and `loaders` import torch.
"""
