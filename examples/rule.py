from episode import PAD, processor


def expand(ids, images):
    """Ids with one <|image_pad|> an image -> ids with n, as the HF processor makes them."""
    grids = processor.image_processor(images=images, return_tensors="pt")["image_grid_thw"]
    counts = iter((grids.prod(dim=1) // processor.image_processor.merge_size**2).tolist())
    return [token for i in ids for token in ([PAD] * next(counts) if i == PAD else [i])]
